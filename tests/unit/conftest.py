"""Engines of a test's own, in this process, under one clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., Library]]:
    """Factory of engines, each in a directory of its own; other names are their options."""
    made: list[Library] = []

    def one(**options: Any) -> Library:
        root = tmp_path / f"data-{len(made)}"
        root.mkdir()
        made.append(Library(str(root), clock, **options))
        return made[-1]

    yield one
    for engine in made:
        engine._forget()


@pytest.fixture
def engine(make: Callable[..., Library]) -> Library:
    return make()
