"""A call to the cold tier that does not come back is said, holds up nothing else once the tier answers, and does no harm when it comes late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.patience import eventually
from topicsd import relocate
from topicsd._native import upkeep
from topicsd.api import probes
from topicsd.relocate import HUNG_BYTES_PER_MS, HUNG_MS, RETRY_MS, SILENT_MS, STUCK_MAX, TELL_MS, Relocation, Thread
from topicsd.segments import cold_tier
from topicsd.segments.cold import ColdError, FolderCold
from topicsd.segments.cold_tier import FAILS, HANGS, KnownCold
from topicsd.segments.fsck import fsck

AFTER_MS = 10 * HUNG_MS


class Hanging(FolderCold):
    """A tier in which calls for the object `hangs` do not come back before `go`, and while `mount_hangs` none do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go, self.hangs, self.mount_hangs, self.is_away = threading.Event(), "none", False, False
        self.begun = list[str]()

    def _hang(self, name: str) -> None:
        self.begun.append(name)
        if (self.mount_hangs or self.hangs in name) and not self.go.wait(60):
            raise ColdError("it was never let go")

    def put(self, name: str, path: Path) -> None:
        self._hang(name)
        super().put(name, path)

    def delete(self, name: str) -> None:
        self._hang(name)
        super().delete(name)

    def check(self) -> None:
        self._hang("marker")
        if self.is_away:
            raise ColdError("away")


class Moves:
    """Segments of which three are to go, and who moves them."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "cold").mkdir()
        self.cold = Hanging(tmp_path / "cold")
        self.engine = Library(str(tmp_path / "data"), FakeClock(), file_bytes=1 << 18)
        self.engine.cold = self.cold
        upkeep.cold_attach(self.engine.shared, 4 << 20)
        self.engine.put("t")
        for first in range(0, 400, 20):
            self.engine.append("t", [{"data": f"{n}" + "x" * 2000} for n in range(first, first + 20)])
        self.engine.seal("t", 100)
        self.relocation: Relocation = self.engine.relocation(self.cold, thread=Thread(), check=self.cold.check)

    def figure(self, name: str) -> int:
        return self.engine.store.figures.get(name)

    def until(self, mono_ms: int, done: Callable[[], bool]) -> None:
        """Step until it is so."""
        assert eventually(lambda: done() or self.relocation.step(mono_ms)), self.cold.begun

    def rests(self, mono_ms: int) -> None:
        """Step until nothing is under way and nothing is due."""
        self.until(mono_ms, lambda: self.relocation._call is None and mono_ms < self.relocation.look_at_ms)


@pytest.fixture
def moves(tmp_path: Path) -> Iterator[Moves]:
    made = Moves(tmp_path)
    yield made
    made.cold.go.set()
    made.engine.close()


FIRST = f"{1:020d}"


def hang_in(moves: Moves, mono_ms: int = 0) -> str:
    """Step until a call hangs for the object of the oldest segment; return its name."""
    moves.cold.hangs = FIRST
    moves.until(mono_ms, lambda: any(FIRST in name for name in moves.cold.begun))
    return moves.cold.begun[-1]


def give_up(moves: Moves, mono_ms: int) -> None:
    moves.relocation.step(mono_ms)
    moves.until(mono_ms + AFTER_MS // 2, lambda: moves.figure("cold_hung") == 1)


def test_a_copy_that_does_not_come_back_is_told_and_others_go_on_when_the_tier_answers(moves: Moves) -> None:
    before = moves.engine.read_all("t"), moves.engine.state("t")
    name = hang_in(moves)
    moves.relocation.step(HUNG_MS)
    assert moves.figure("cold_hung") == 0, "it has as long again for its bytes"
    moves.cold.is_away = True
    give_up(moves, HUNG_MS + (1 << 20) // HUNG_BYTES_PER_MS)
    assert moves.figure("cold_away") == HANGS
    moves.until(AFTER_MS, lambda: moves.figure("cold_away") == FAILS)
    assert moves.cold.begun.count(name) == 1 and len(set(moves.cold.begun)) == 2, "nothing is moved before the tier answers"
    moves.cold.is_away = False
    moves.until(2 * AFTER_MS, lambda: moves.figure("cold_moved") == 2)
    moves.rests(2 * AFTER_MS)
    assert (moves.figure("cold_away"), moves.figure("cold_hung")) == (0, 1)
    assert moves.cold.begun.count(name) == 1, "two would write where the other one writes"
    moves.cold.go.set()
    moves.until(2 * AFTER_MS + 1, lambda: moves.figure("cold_moved") == 3)
    assert moves.figure("cold_hung") == 0 and moves.cold.begun.count(name) == 1, "what has come late is taken"
    moves.rests(3 * AFTER_MS)
    assert (moves.engine.read_all("t"), moves.engine.state("t")) == before
    moves.engine.stop()
    report = fsck(Path(moves.engine.directory), cold=moves.cold)
    assert (report.problems, report.cold) == ([], 3)


def test_a_tier_that_does_not_say_who_it_is_is_away_long_before_the_call_is_given_up(moves: Moves) -> None:
    moves.rests(0)
    moves.cold.mount_hangs = True
    begun = len(moves.cold.begun)
    moves.until(AFTER_MS, lambda: len(moves.cold.begun) > begun)
    moves.relocation.step(AFTER_MS + SILENT_MS - 1)
    assert moves.figure("cold_away") == 0
    with capture_logs() as logged:
        moves.relocation.step(AFTER_MS + SILENT_MS)
        moves.relocation.step(AFTER_MS + SILENT_MS + 1)
    assert moves.figure("cold_away") == HANGS and moves.figure("cold_hung") == 0
    assert [line["event"] for line in logged] == ["the cold tier does not answer"]
    moves.cold.go.set()
    moves.until(AFTER_MS + SILENT_MS + 2, lambda: moves.figure("cold_away") == 0)


def test_a_late_copy_of_a_segment_that_has_gone_meanwhile_is_not_published(moves: Moves) -> None:
    hang_in(moves)
    give_up(moves, AFTER_MS)
    moves.engine.drop("t")
    moves.engine.checkpoint()
    moves.engine.put("t")
    moves.cold.go.set()
    moves.until(2 * AFTER_MS, lambda: moves.figure("cold_hung") == 0)
    moves.rests(2 * AFTER_MS)
    assert moves.figure("cold_moved") == 0
    assert moves.engine.state("t")["count"] == 0


def test_a_removal_that_does_not_come_back_is_not_begun_again_and_others_go_on(moves: Moves) -> None:
    moves.until(0, lambda: moves.figure("cold_moved") == 3)
    moves.rests(RETRY_MS)
    moves.engine.drop("t")
    for _ in range(3):
        moves.engine.checkpoint()
    moves.cold.begun.clear()
    name = hang_in(moves, AFTER_MS)
    give_up(moves, 2 * AFTER_MS)
    moves.until(3 * AFTER_MS, lambda: len(list(moves.cold.names())) == 1)
    moves.rests(3 * AFTER_MS)
    gone = moves.relocation.gone
    assert len(gone()) == 1 and moves.cold.begun.count(name) == 1
    moves.cold.go.set()
    moves.until(4 * AFTER_MS, lambda: not gone())
    assert list(moves.cold.names()) == [] and moves.figure("cold_hung") == 0


def test_a_removal_that_is_slow_does_not_hang(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    moves.until(0, lambda: moves.figure("cold_moved") == 3)
    moves.rests(RETRY_MS)
    moves.engine.drop("t")
    for _ in range(3):
        moves.engine.checkpoint()
    one, delete = threading.Semaphore(0), moves.cold.delete
    monkeypatch.setattr(moves.cold, "delete", lambda name: one.acquire() and delete(name))
    now_ms = AFTER_MS
    moves.until(now_ms, lambda: (call := moves.relocation._call) is not None and len(call.removing) == 3)
    for left in (2, 1, 0):
        now_ms += HUNG_MS - 1
        moves.relocation.step(now_ms)
        one.release()
        moves.until(now_ms, lambda left=left: len(list(moves.cold.names())) == left)  # type: ignore[misc]
    moves.until(now_ms, lambda: not moves.relocation.gone())
    assert moves.figure("cold_hung") == 0


def test_while_a_mount_hangs_it_is_said_once_a_minute_and_asked_less_and_less_often(moves: Moves) -> None:
    moves.cold.mount_hangs = True
    hour_ms = 3_600_000
    with capture_logs() as lines:
        for now_ms in range(0, 24 * hour_ms, RETRY_MS):
            moves.relocation.step(now_ms)
    told = [line for line in lines if line["event"] == "a call to the cold tier hangs"]
    assert 24 * hour_ms // TELL_MS - 60 < len(told) <= 24 * hour_ms // TELL_MS
    assert told[0]["call"] == "look" and told[0]["for_ms"] < HUNG_MS + 2 * RETRY_MS, "at once"
    assert 10 < moves.figure("cold_hung") < STUCK_MAX, "nobody can end their threads"
    assert moves.figure("cold_away") == HANGS
    moves.cold.mount_hangs = False
    moves.cold.go.set()
    moves.until(24 * hour_ms, lambda: moves.figure("cold_moved") == 3)
    assert moves.figure("cold_away") == moves.figure("cold_hung") == 0


def test_more_threads_than_that_are_never_left_behind(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocate, "STUCK_MAX", 2)
    moves.cold.mount_hangs = True
    for now_ms in range(0, 100 * AFTER_MS, RETRY_MS):
        moves.relocation.step(now_ms)
    assert moves.figure("cold_hung") == 2
    moves.cold.go.set()
    moves.until(101 * AFTER_MS, lambda: moves.figure("cold_moved") == 3)


def test_a_call_that_hangs_while_a_tier_is_marked_keeps_others_from_that(moves: Moves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_tier, "MEET_S", 0.05)
    known = KnownCold(moves.cold, tmp_path / "data", keeps=True)
    moves.cold.mount_hangs = True
    thread = threading.Thread(target=known.verify, kwargs={"first_use": True})
    thread.start()
    moves.until(0, lambda: cold_tier.MARKER in moves.cold.begun)
    with pytest.raises(ColdError, match="has not come back"):
        known.verify(first_use=True)
    moves.cold.go.set()
    thread.join(30)
    known.verify()
    assert moves.cold.begun.count(cold_tier.MARKER) == 1


def test_ready_says_that_a_call_hangs(moves: Moves) -> None:
    moves.engine.store.figures.set("cold_away", HANGS)
    shared = SimpleNamespace(shard=lambda _number: {"read_only": 0}, get=lambda _name: 0)
    context: Any = SimpleNamespace(shared=shared, figures=moves.engine.store.figures, settings=SimpleNamespace(cold_dir="/there"))
    (reason,) = probes.restrictions(context)
    assert reason.startswith("cold_unavailable: /there: a call of the keeper has not come back") and "not served" not in reason
