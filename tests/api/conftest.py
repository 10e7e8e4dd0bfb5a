"""The door on a loop of its own; tests are plain coroutines run by `run`."""

from __future__ import annotations

import asyncio
import os

import pytest

from fakes.backend import House


@pytest.fixture
def run(monkeypatch):
    """Run `test(house)` on a house with these settings."""
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)

    def run_one(test, **settings):
        async def main():
            house = House(**settings)
            try:
                return await asyncio.wait_for(test(house), 100)
            finally:
                house.close()

        return asyncio.run(main())

    return run_one
