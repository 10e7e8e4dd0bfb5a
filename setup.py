"""The extensions of topicsd; everything else about the package stands in pyproject.toml.

Every `_native/<name>.pyx` becomes `topicsd._native.<name>`; `_native/<name>_impl.c`, where it exists, is compiled into the same module.
Headers and pages of truth (.pxd) are found as `layout.h` and `from topicsd._native.<name> cimport ...`.

What the environment can say:
  TOPICSD_DEBUG=1       -O1 -g, C assertions, bounds checks and fault points (build/debug instead of build)
  TOPICSD_SANITIZE=1    the same with AddressSanitizer and UBSan (build/sanitize)
  TOPICSD_TRACE=1       the debug build with line tracing, for coverage (build/trace)
  TOPICSD_ONLY="a b"    build these modules alone; "none" builds no module
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, find_packages, setup

HERE = Path(__file__).resolve().parent
os.chdir(HERE)  # all paths below are relative: setuptools wants them so
NATIVE = Path("_native")
VIEW = Path("build/view")

SANITIZE = os.environ.get("TOPICSD_SANITIZE") == "1"
TRACE = os.environ.get("TOPICSD_TRACE") == "1"
DEBUG = SANITIZE or TRACE or os.environ.get("TOPICSD_DEBUG") == "1"
ONLY = os.environ.get("TOPICSD_ONLY", "").split()
JOBS = min(os.cpu_count() or 1, 8)
# One folder a flavour: neither Cython nor setuptools notices that flags have changed.
BUILD = "build/trace" if TRACE else "build/sanitize" if SANITIZE else "build/debug" if DEBUG else "build"

# Wheels are portable: the compiler's baseline for the machine's family (SSE2 on x86-64), never -march=native.
COMPILE = ["-std=gnu11", "-fno-strict-aliasing", "-Wall", "-Wno-unused-function", "-Wno-unused-but-set-variable", "-Werror=overflow"]
COMPILE += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer"] if DEBUG else ["-O3"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"] if SANITIZE else []


def make_view() -> None:
    """Lay the tree `build/view/topicsd/` of links.

    Cython and mypy find a package by its folders, but `_native/` and `api/` lie beside `topicsd/`. In this tree they lie inside it.
    """
    package = VIEW / "topicsd"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in Path("topicsd").iterdir() if path.name != "__pycache__"}
    wanted |= {"_native": NATIVE, "api": Path("api")}
    for name, path in wanted.items():
        link, target = package / name, Path(os.path.relpath(path, package))
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    for link in package.iterdir():
        if link.name not in wanted:
            link.unlink()


def extensions() -> list[Extension]:
    """List the modules to build, cythonized where their source or a .pxd that they cimport is newer than the C."""
    headers = [str(path) for path in sorted(NATIVE.glob("*.h"))]
    modules = []
    for source in sorted(NATIVE.glob("*.pyx")):
        if ONLY and source.stem not in ONLY:
            continue
        implementation = source.with_name(f"{source.stem}_impl.c")
        modules.append(
            Extension(
                f"topicsd._native.{source.stem}",
                [str(source), *([str(implementation)] if implementation.exists() else [])],
                include_dirs=[str(NATIVE)],
                define_macros=[("TOPICSD_DEBUG", "1")] * DEBUG + [("CYTHON_TRACE", "1")] * TRACE,
                extra_compile_args=COMPILE + SANITIZERS,
                extra_link_args=SANITIZERS,
                depends=[*headers, "setup.py"],
            )
        )
    if not modules:
        return []
    from Cython.Build import cythonize
    from Cython.Compiler.Errors import CompileError

    try:
        return cythonize(
            modules,
            include_path=[str(VIEW)],
            build_dir=f"{BUILD}/cython",
            nthreads=JOBS if len(modules) > 1 else 0,
            compiler_directives={"language_level": 3, "boundscheck": DEBUG, "wraparound": False, "cdivision": True, "linetrace": TRACE},
        )
    except CompileError as wrong:
        sys.exit(f"{wrong} does not compile; nothing was built (TOPICSD_ONLY builds others alone)")


def packages() -> list[str]:
    """Name the packages: the three folders of the checkout and the folders with an `__init__.py` inside them."""
    roots = {"topicsd": "topicsd", "topicsd.api": "api", "topicsd._native": "_native"}
    return [name for root, folder in roots.items() for name in (root, *(f"{root}.{inner}" for inner in find_packages(folder)))]


class View(Command):
    """`setup.py view` only lays the tree of links (for mypy and editors)."""

    description = "lay build/view/topicsd/"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None: ...
    def finalize_options(self) -> None: ...
    def run(self) -> None:
        make_view()


make_view()
setup(
    packages=packages(),
    ext_modules=extensions() if "none" not in ONLY else [],
    cmdclass={"view": View},
    options={"build": {"build_base": BUILD}, "build_ext": {"parallel": JOBS}},
)
