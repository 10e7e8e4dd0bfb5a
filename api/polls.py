"""Long polls of one worker: who waits for which topic.

No wake-up is lost: a waiter sets its watch in shared memory first, looks at the topic after that, and only then sleeps; the writer moves the
head first and looks at the watches then. A watch is for one time: the writer clears what it has rung.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Watches(Protocol):
    """What is used of topicsd._native.port.Port."""

    def watch(self, slot: int) -> None: ...
    def unwatch(self, slot: int) -> None: ...


class Polls:
    """Keep the futures of waiting readers by topic slot."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self.keeps: Callable[[int], bool] = lambda slot: False  # whether the feed needs a watch that no poll needs any more
        self._waiting: dict[int | None, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return sum(len(each) for each in self._waiting.values())

    def enter(self, slot: int | None) -> asyncio.Future[None]:
        """Watch a topic; the future is done once it has moved, or may have. Look at the topic after this call.

        None: wait for a new writer only, which wakes everyone.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(slot, set()).add(future)
        if slot is not None:
            self._watches.watch(slot)
        return future

    def leave(self, slot: int | None, future: asyncio.Future[None]) -> None:
        """Stop waiting."""
        others = self._waiting.get(slot)
        if others is None or future not in others:
            return
        others.discard(future)
        if not others:
            del self._waiting[slot]
            if slot is not None and not self.keeps(slot):
                self._watches.unwatch(slot)

    def wake(self, slots: list[int] | None) -> None:
        """Wake those who wait for these slots; None: everyone."""
        for slot in list(self._waiting) if slots is None else slots:
            for future in self._waiting.pop(slot, ()):
                if not future.done():
                    future.set_result(None)


class Turns:
    """Let those who look for jobs of one queue do so one at a time, first come first served: a new job wakes one of them, not all."""

    def __init__(self) -> None:
        self._lines: dict[bytes, deque[asyncio.Future[None]]] = {}

    def enter(self, name: bytes) -> asyncio.Future[None]:
        """Stand in line; the future is done once it is one's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(name, deque())
        line.append(turn)
        if len(line) == 1:
            turn.set_result(None)
        return turn

    def leave(self, name: bytes, turn: asyncio.Future[None]) -> None:
        """Leave the line, at its head or anywhere else."""
        line = self._lines[name]
        line.remove(turn)
        if not line:
            del self._lines[name]
        elif not line[0].done():
            line[0].set_result(None)
