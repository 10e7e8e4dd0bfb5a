"""The five minutes of the README, typed into a shell: each command gives the answer that the page shows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.server import Server, tool

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VOLATILE = frozenset({"performance", "effective_priority", "$ts", "last_write_ts", "last_read_ts"})


def steps(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each block of commands with the answer that follows it, None where none does."""
    tour = text.partition("## Five minutes with curl\n")[2].partition("\n## ")[0]
    for command, answer in re.findall(r"^```sh\n(.*?)^```\n(?:^```(?:json)?\n(.*?)^```\n)?", tour, flags=re.S | re.M):
        yield command, answer or None


def settled(answer: str) -> Any:
    """Return an answer without what differs from run to run."""
    if not answer.startswith("{"):
        return answer.strip()
    return without(json.loads(answer.replace("{…}", "{}")))


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without(each) for name, each in value.items() if name not in VOLATILE}
    return [without(each) for each in value] if isinstance(value, list) else value


@pytest.mark.skipif(tool("curl") is None, reason="no curl on this machine")
def test_the_tour_of_the_readme_gives_the_answers_that_it_shows(root: Path, launch: Callable[..., Server]) -> None:
    server = launch()
    address = "{}:{}".format(*server.address)
    said = ""
    answers = 0
    for command, shown in steps((root / "README.md").read_text(encoding="utf-8")):
        command = command.replace("127.0.0.1:4000", address)
        if shown is None:
            said += command  # variables: a shell remembers them
            continue
        ran = subprocess.run(["bash", "-c", said + command], cwd=server.directory, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, f"{command}\n{ran.stderr}\n{server.log()}"
        assert settled(ran.stdout) == settled(shown), command
        answers += 1
    assert answers >= 10
