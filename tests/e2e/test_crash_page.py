"""docs/crash.md has the recovery table of the code, row by row."""

from __future__ import annotations

from pathlib import Path

from topicsd.engine.recovery import PLANS, Plan

BEGIN, END = "<!-- recovery table: begin -->", "<!-- recovery table: end -->"
ACTIONS = {
    "jump": "`memory` and `disk` topics jump to their ceiling",
    "corrupt_tail": "topics that may have had records in a damaged tail jump over it, reason `corrupt`",
    "degraded": "ready says `degraded`",
    "far_ids": "topic ids go on above all that may have been used",
}


def table() -> str:
    """Render PLANS as the page shows it."""
    rows = ["| boot of the last writer | log | what recovery does besides replay |", "|---|---|---|"]
    for state, plan in PLANS.items():
        said = "; ".join(ACTIONS[name] for name, wanted in plan._asdict().items() if wanted)
        rows.append(f"| {state.boot} | {state.log} | {said or 'nothing'} |")
    return "\n".join(rows)


def test_the_recovery_table_of_the_page_is_the_one_of_the_code(root: Path) -> None:
    assert set(Plan._fields) == set(ACTIONS), "a new member of Plan needs its words here"
    page = (root / "docs" / "crash.md").read_text(encoding="utf-8")
    shown = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(), f"docs/crash.md should have:\n{table()}"


def test_every_test_file_that_the_page_names_exists(root: Path) -> None:
    page = (root / "docs" / "crash.md").read_text(encoding="utf-8")
    named = {word.strip("`") for word in page.replace("|", " ").split() if word.startswith(("`tests/", "`ci/"))}
    assert named and [name for name in sorted(named) if not (root / name).exists()] == []
