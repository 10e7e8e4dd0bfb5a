"""Servers of one's own for the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.server import Server


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Factory of servers that are killed at the end. `start=False` leaves the start to the test; other names in capitals are its environment."""
    started: list[Server] = []

    def launch_one(start: bool = True, workers: int = 1, files_max: int | None = None, data_dir: Path | None = None, **env: Any) -> Server:
        named = {name: str(value) for name, value in env.items()}
        server = Server(tmp_path / f"server-{len(started)}", workers, named, files_max=files_max, data_dir=data_dir)
        started.append(server)
        return server.start() if start else server

    yield launch_one
    for server in started:
        server.kill()
