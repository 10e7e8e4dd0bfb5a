"""The README and the architecture page name only what exists, and every setting with its default."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from topicsd.settings import SECRETS, Settings

UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
BESIDE_THE_FIELDS = {"TOPICS_CONFIG"} | {f"TOPICS_{name.upper()}{ending}" for name in SECRETS for ending in ("", "_FILE")}
TOP_LEVEL = ("_native/", "api/", "ci/", "docs/", "perf/", "tests/", "topicsd/")  # what a path in backticks begins with
PAGES = ("README.md", "docs/architecture.md")


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, root: Path) -> Path:
    return root / str(request.param)


@pytest.fixture
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)


def code_spans(text: str) -> set[str]:
    """Return what stands in backticks, outside of fenced blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)))


def settings_table(text: str) -> dict[str, str]:
    """Return the second column of the table of settings by the first."""
    return dict(re.findall(r"^\| `(TOPICS_[A-Z_]+)` \| (.+?) \|", text, flags=re.M))


def shown(default: Any) -> str | bool | int | None:
    """Bring a default of `Settings` to what a README can show."""
    return str(default) if isinstance(default, Path) else default


def meant(cell: str) -> str | bool | int | None:
    """Read a default as the README shows it."""
    if cell == "–":
        return None
    text = cell.strip("`")
    if sized := re.fullmatch(r"(\d+) (KiB|MiB|GiB)", text):
        return int(sized[1]) * UNITS[sized[2]]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def test_every_variable_that_is_named_is_a_setting(page: Path) -> None:
    known = {f"TOPICS_{name.upper()}" for name in Settings.model_fields} | BESIDE_THE_FIELDS
    named = set(re.findall(r"\bTOPICS_[A-Z][A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    assert named and named - known == set()


@pytest.mark.usefixtures("plain_environment")
def test_every_setting_stands_in_the_table_with_its_default(readme: str) -> None:
    table = settings_table(readme)
    settings = Settings()
    expected = {f"TOPICS_{name.upper()}": shown(getattr(settings, name)) for name in Settings.model_fields} | dict.fromkeys(BESIDE_THE_FIELDS)
    assert {name: meant(cell) for name, cell in table.items()} == expected


def test_every_make_target_that_is_named_exists(root: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (root / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    for page in PAGES:
        text = (root / page).read_text(encoding="utf-8")
        lines = re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", text, flags=re.M)
        assert {target for pair in lines for target in pair if target} - targets == set(), page


def test_every_path_that_is_named_exists(page: Path, root: Path) -> None:
    spans = code_spans(page.read_text(encoding="utf-8"))
    paths = {span.split()[0] for span in spans if span.startswith(TOP_LEVEL)}
    assert paths
    assert [path for path in sorted(paths) if not (root / path).exists()] == []


def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.M)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target


def test_every_limit_that_is_told_as_a_number_is_the_one_of_the_code(readme: str) -> None:
    from topicsd import limits

    told = re.search(r"At most ([\d,]+) topics, (\d+) workers, (\d+) log shards", readme)
    assert told is not None
    assert tuple(int(number.replace(",", "")) for number in told.groups()) == (limits.TOPICS_HARD_MAX, limits.WORKERS_MAX, limits.LOG_SHARDS_MAX)
