# Every target is one line of `make help`. PYTHON=python3.12 makes the virtual environment with another Python (3.11 or later).
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python

# make crash: on a debug build in an environment of its own; SANITIZE=1 adds AddressSanitizer and UBSan
ifeq ($(SANITIZE),1)
CRASH_VENV := .venv-sanitize
CRASH_ENV  := TOPICSD_SANITIZE=1
CRASH_RUN   = LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:handle_segv=0
else
CRASH_VENV := .venv-debug
CRASH_ENV  := TOPICSD_DEBUG=1
CRASH_RUN  :=
endif

NATIVE := $(filter-out $(wildcard _native/*.so _native/*.pyi),$(wildcard _native/*.*))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run demo pipeline test test-fast bench lint crash clean build types format

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed $(VENV)/.built ## make .venv, install topicsd into it, build the extensions

run: setup ## serve on 127.0.0.1:4000, data in ./data
	@exec $(VENV)/bin/topicsd serve --data-dir ./data

demo: setup ## load the real input, kill processes meanwhile, prove that nothing is lost
	@exec $(PY) ci/demo.py

pipeline: setup ## topics to a lake, to answers and back on a Spark cluster, with processes killed, ending in an audit
	@PY=$(PY) ci/ensure-java
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) ci/pipeline.py --out perf/out

test: setup ## all tests and the conformance suite, except those of make crash
	@PY=$(PY) ci/test all

test-fast: setup ## the unit and api tests that are not slow
	@PY=$(PY) ci/test fast

crash: $(CRASH_VENV)/.installed ## the crash tests on a debug build (SANITIZE=1: with ASan and UBSan)
	@mkdir -p build
	@$(CRASH_ENV) flock build/.lock $(CRASH_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .
	@$(CRASH_ENV) $(CRASH_RUN) PYTHONSAFEPATH=1 PY=$(CRASH_VENV)/bin/python ci/test crash

bench: setup ## run every bench of perf/ beside its physical limit
	@PY=$(PY) ci/ensure-java
	@exec $(PY) perf/report.py

lint: types ## ruff, cython-lint, mypy --strict
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint _native  # it calls pycodestyle by name
	@for pyx in $(wildcard _native/*.pyx); do test -f $${pyx%.pyx}.pyi || { echo "$$pyx has no .pyi"; exit 1; }; done

types: $(VENV)/.installed ## mypy --strict alone
	@TOPICSD_ONLY=none $(PY) setup.py -q view
	@cd build/view && ../../$(VENV)/bin/mypy --config-file ../../pyproject.toml -p topicsd

format: $(VENV)/.installed ## lay out the Python files as lint wants them
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

build: $(VENV)/.installed ## rebuild the extensions that changed (ONLY="scan ring": these alone)
	@mkdir -p build
	@TOPICSD_ONLY="$(ONLY)" flock build/.lock $(PY) setup.py -q build_ext --inplace

clean: ## remove what was built, but neither ./data nor the virtual environments
	rm -rf build dist *.egg-info _native/*.so perf/out .mypy_cache .pytest_cache .ruff_cache .hypothesis $(VENV)/.built
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "topicsd needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Editable and without the extensions: those are built in place, and again only when they change.
$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.python
	$(PY) -m pip install -q --disable-pip-version-check 'setuptools>=80' 'cython>=3.1'
	TOPICSD_ONLY=none $(PY) -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(NATIVE)
	@$(MAKE) --no-print-directory build
	@touch $@

$(CRASH_VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(CRASH_VENV)
	$(CRASH_VENV)/bin/python -m pip install -q --disable-pip-version-check 'setuptools>=80' 'cython>=3.1'
	TOPICSD_ONLY=none $(CRASH_ENV) $(CRASH_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation '.[dev]'
	@touch $@
