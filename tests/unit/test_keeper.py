"""The keeper's manners: when it ends, and when it lets others go first (ARCHITECTURE section 2)."""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from topicsd import errors, keeper, limits, room_notes
from topicsd.api import sealing
from topicsd.figures import Figures
from topicsd.keeper import BEHIND_BYTES_MAX, FLOOD_BYTES_MAX, LOOK_S, PACE, Flood, Keeper, Line, RefusedError
from topicsd.room_notes import FULL, NOTHING_FITS, OVER, WAITS, RoomNotes
from topicsd.segments.sealing import MIB, Done, Policy


def a_line() -> Line:
    line = Line.__new__(Line)
    line.ended = False
    return line


@pytest.mark.parametrize(("got", "ends"), [(None, False), (SimpleNamespace(si_signo=0), False), (SimpleNamespace(si_signo=signal.SIGUSR1), True)])
def test_only_the_arbiters_signal_ends_it(monkeypatch: pytest.MonkeyPatch, got: Any, ends: bool) -> None:
    # A process that is stopped and continued while it waits gets an empty siginfo.
    monkeypatch.setattr(signal, "sigtimedwait", lambda _signals, _seconds: got)
    line = a_line()
    line.pause(1.0)
    assert line.ended == ends


class House:
    """A keeper whose clock moves only when it rests.

    flood_s: how long the flood of a GiB a second goes on; room: what may wait to be sealed meanwhile; full_s: after how long the disk is full.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, short: bool, flood_s: float = 0.0, room: int = FLOOD_BYTES_MAX, full_s: float = 1e9) -> None:
        self.now_s, self.wanted = 100.0, 0
        monkeypatch.setattr(keeper.time, "monotonic", lambda: self.now_s)
        self.keeper = Keeper.__new__(Keeper)
        self.keeper.cpus = SimpleNamespace(are_short=lambda: short)  # type: ignore[assignment]
        self.keeper.flood = SimpleNamespace(  # type: ignore[assignment]
            is_on=lambda: self.now_s < 100.0 + flood_s, log_bytes=lambda: (7 << 40) + int(min(self.now_s - 100.0, flood_s) * (1 << 30))
        )
        self.keeper.line = SimpleNamespace(pause=self.pause, ended=False)  # type: ignore[assignment]
        self.keeper.rounds = SimpleNamespace(policy=Policy())  # type: ignore[assignment]
        monkeypatch.setattr(self.keeper, "_seal_wanted", self.seal)
        monkeypatch.setattr(self.keeper, "_is_full", lambda: self.now_s >= 100.0 + full_s)
        monkeypatch.setattr(self.keeper, "_patience_bytes", lambda: room)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def seal(self) -> None:
        self.wanted += 1

    def rest(self, took_s: float, behind: int) -> float:
        before_s = self.now_s
        self.keeper._pace(took_s, behind)
        return self.now_s - before_s


def test_where_cpus_are_short_it_rests_longer_than_it_worked_and_serves_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, short=True)
    assert house.rest(0.1, 0) == pytest.approx(0.1 * PACE)
    assert house.wanted >= 3, "whoever asks for a topic to be sealed waits for a rest to end"
    assert house.rest(60.0, 0) < 5, "a long segment makes it sleep for ever"


def test_it_does_not_rest_where_cpus_are_free_or_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert House(monkeypatch, short=False).rest(0.1, 0) == 0
    assert House(monkeypatch, short=True).rest(0.1, BEHIND_BYTES_MAX) == 0


@pytest.mark.parametrize("took_s", [0.0, 0.1])
def test_it_rests_until_a_flood_of_the_log_ends_or_too_much_waits(monkeypatch: pytest.MonkeyPatch, took_s: float) -> None:
    behind, gib = BEHIND_BYTES_MAX + 1, 1 << 30
    house = House(monkeypatch, short=False, flood_s=3)
    assert house.rest(took_s, behind) == 3, "before the first segment too: it would take from the flood what it is judged by"
    assert house.wanted == 3 / LOOK_S, "whoever asks for a topic to be sealed waits for a flood to end"
    assert House(monkeypatch, short=True, flood_s=0.3).rest(took_s, behind) == 2 * LOOK_S, "it is over: back to work"
    assert House(monkeypatch, short=False, flood_s=60, room=behind + 5 * gib).rest(took_s, behind) == 5, "what came meanwhile waits too"
    assert House(monkeypatch, short=False, flood_s=60).rest(took_s, FLOOD_BYTES_MAX) == 0
    assert House(monkeypatch, short=False, flood_s=60, room=behind).rest(took_s, behind) == 0, "the disk or the memory is short"
    assert House(monkeypatch, short=False, flood_s=60, full_s=1).rest(took_s, behind) == 1, "full meanwhile: back to work"
    house = House(monkeypatch, short=False, flood_s=60)
    monkeypatch.setattr(house, "pause", lambda _seconds: setattr(house.keeper.line, "ended", True))
    house.keeper.line.pause = house.pause  # type: ignore[method-assign]
    assert house.rest(took_s, behind) == 0, "it is to end"


def test_it_does_not_rest_while_writers_wait_for_the_room_that_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert House(monkeypatch, short=True, flood_s=60, full_s=0).rest(0.1, 0) == 0
    assert House(monkeypatch, short=True, full_s=0.3).rest(0.2, 0) == pytest.approx(2 * LOOK_S), "full meanwhile: back to work"
    house = House(monkeypatch, short=True)
    house.keeper.rounds.policy = Policy(only_behind=True)
    assert house.rest(0.1, 0) == 0, "a quota has refused the log, whatever the disk has free"


def test_a_flood_is_what_the_log_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, written = [50.0], [7 << 40]
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now_s[0])
    shared = SimpleNamespace(shard=lambda number: {"bytes_written": written[0] if number == 2 else 0})
    flood = Flood(shared)  # type: ignore[arg-type]
    assert not flood.is_on(), "what was written before says nothing"
    rate = limits.FLOOD_BYTES_PER_S
    turns = [(1.0, 0, False), (1.0, rate, True), (0.01, 0, True), (0.5, rate, True), (2.0, rate, True), (2.0, rate - 2, False), (2.0, rate, False)]
    for seconds, gained, is_on in turns:  # it lasts until half of what began it
        now_s[0] += seconds
        written[0] += gained
        assert flood.is_on() == is_on, (seconds, gained)


def test_what_may_wait_in_a_flood_follows_the_disk_and_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    house = Keeper.__new__(Keeper)
    house.settings = SimpleNamespace(data_dir="/")  # type: ignore[assignment]
    pages = {"SC_PHYS_PAGES": 1 << 30, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(keeper.os, "sysconf", pages.__getitem__)
    much = 1 << 50
    for free, memory_pages, may_wait in ((much, 1 << 30, FLOOD_BYTES_MAX), (1 << 30, 1 << 30, 1 << 27), (much, 3 << 10, 1 << 22), (0, 1 << 30, 0)):
        monkeypatch.setattr(keeper.os, "statvfs", lambda _path, free=free: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))
        pages["SC_PHYS_PAGES"] = memory_pages
        assert house._patience_bytes() == may_wait


def test_on_a_full_disk_it_seals_what_holds_the_oldest_log_files_whatever_its_age(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "log" / "shard-00"
    folder.mkdir(parents=True)
    for first in (0, 1000, 3000):
        (folder / f"{first:020d}.log").write_bytes(bytes(8))
    line, asked = {"read_only": 0, "written": 3500}, list[Any]()
    one = Keeper.__new__(Keeper)
    one.settings = SimpleNamespace(data_dir=tmp_path)  # type: ignore[assignment]
    one.full_bytes = 4096
    one.shared = SimpleNamespace(shard=lambda _number: line)  # type: ignore[assignment]
    made = Done(segments=1)
    one.rounds = SimpleNamespace(  # type: ignore[assignment]
        policy=Policy(log_bytes_max=1 << 30),
        make_room=lambda behind, _now: asked.append(behind) or made,
        round=lambda _now: asked.append("all") or Done(), room=lambda: room[0], gains=lambda size: gained.append(size) or size != 3499,
    )  # fmt: skip
    filled, room, gained = list[int](), [4096], list[int]()
    one.reserve = SimpleNamespace(fill=filled.append, missing=lambda: 0)  # type: ignore[assignment]
    one._round(0)
    assert asked.pop() == "all" and not asked
    line["read_only"] = errno.EIO
    one._round(0)
    assert asked.pop() == "all" and not asked, "another failure than a full disk"
    line["read_only"] = errno.ENOSPC
    one._round(0)
    assert gained == [3500], "all of the log"
    assert filled == [4096] * 2, "what is sealed for want of room has it first"
    assert asked == [[2500, 500]], "the first file ends 2500 bytes behind the log's end; the one that is written holds nobody up"
    made.segments = 0
    one._round(0)
    assert asked[2:] == ["all"], "nothing holds them: what is due by its size or age"
    line["read_only"], made.segments, room[0] = 0, 1, 4095
    one._round(0)
    assert asked[3:] == [[2500, 500]], "there is no room for the next file"
    line["written"] = 3499
    one._round(0)
    assert asked[4:] == ["all"], "segments would take as much as the log gives back"
    one.rounds.policy = Policy(0, 0, 0)
    one._round(0)
    assert asked[5:] == ["all"], "sealing is off"


def test_rounds_that_make_room_follow_each_other_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now_s, full = Keeper.__new__(Keeper), [100.0], [True]
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now_s[0])
    rounds = [Done(segments=1)] * 3 + [Done(), Done(segments=1)]
    one.shared, one.round_at_s, one.relocation = SimpleNamespace(ready=True), 0.0, None  # type: ignore[assignment]
    one.flood = SimpleNamespace(is_on=lambda: False)  # type: ignore[assignment]
    one.upkeep = SimpleNamespace(step=lambda *_now: None)  # type: ignore[assignment]
    for name, does in (("_sweep", lambda: None), ("_seal_wanted", lambda: None), ("_tell_room", lambda _done: None), ("_is_full", lambda: full[0])):
        monkeypatch.setattr(one, name, does)
    monkeypatch.setattr(one, "_round", lambda _now: rounds.pop(0))
    assert [one.step() for _ in range(3)] == [0, 0, 0] and len(rounds) == 2, "each of them frees one file of the log"
    assert one.step() == LOOK_S and len(rounds) == 1, "nothing is left that holds one"
    assert one.step() == LOOK_S and len(rounds) == 1, "too soon"
    now_s[0], full[0] = 200.0, False
    assert one.step() == LOOK_S and not rounds, "there is room"


def test_who_asks_for_a_topic_to_be_sealed_is_told_that_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, slept = Figures(), list[float]()

    async def call(_command: Any) -> tuple[dict[str, int], None]:
        return {"sealed_seq": 3, "head_seq": 9, "earliest_seq": 1, "epoch": 1}, None

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    context: Any = SimpleNamespace(figures=figures, calls=SimpleNamespace(call=call))
    assert asyncio.run(sealing.seal(context, "t"))["sealed"] is False
    one = Keeper.__new__(Keeper)
    one.figures, one.notes = figures, SimpleNamespace(note=lambda _why, _numbers: None)  # type: ignore[assignment]
    one.shared = SimpleNamespace(shard=lambda _number: {"read_only": 0})  # type: ignore[assignment]
    one._tell_room(Done(no_room=1))
    with pytest.raises(errors.StorageReadOnly, match="no room"):
        asyncio.run(sealing.seal(context, "t"))
    one._tell_room(Done())
    assert asyncio.run(sealing.seal(context, "t"))["sealed"] is False


def test_a_keeper_that_a_full_disk_holds_up_says_so_at_once_and_once_a_minute_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s, told, read_only = [1000.0], list[tuple[str, dict[str, Any]]](), [0]
    one = Keeper.__new__(Keeper)
    one.figures, one.notes = Figures(), RoomNotes(lambda: now_s[0])
    one.settings = SimpleNamespace(data_dir=tmp_path)  # type: ignore[assignment]
    one.shared = SimpleNamespace(shard=lambda number: {"read_only": read_only[0] if number == 1 else 0})  # type: ignore[assignment]
    one.reserve = SimpleNamespace(held=lambda: 5, missing=lambda: 7)  # type: ignore[assignment]
    monkeypatch.setattr(room_notes.log, "warning", lambda event, **fields: told.append((event, fields)))

    def lines(done: Done, seconds: float, every_s: float = 0.25) -> list[str]:
        told.clear()
        for _ in range(int(seconds / every_s)):
            one._tell_room(done)
            now_s[0] += every_s
        return [event for event, _fields in told]

    assert lines(Done(), 10) == lines(Done(segments=3), 10) == [], "nothing is wrong"
    for done, why in ((Done(waits=2), WAITS), (Done(no_room=2), NOTHING_FITS)):
        assert lines(done, 59.5) == [why], "at once, and not again within a minute"
        assert told[0][1]["tails"] == 2 and (told[0][1]["set_aside_bytes"], told[0][1]["to_set_aside_bytes"]) == (5, 7)
        assert told[0][1]["free_bytes"] > 0 and "delete" in told[0][1]["helps"], "who reads it learns what can be done"
        assert lines(Done(segments=1), 1) + lines(done, 1) == [why], "a round that sealed in between is no end; a minute has passed"
        assert lines(done, 120) == [why] * 2
        assert lines(Done(), 60) == [OVER], "once"
    read_only[0] = errno.ENOSPC
    assert lines(Done(), 1) == [FULL], "nothing is sealed any more, and the log has no room"
    assert lines(Done(segments=1), 4) == [], "it makes room"
    read_only[0] = errno.EIO
    assert lines(Done(), 10) == [OVER], "another failure is the writer's to tell"


def test_what_is_made_anew_on_a_full_disk_has_room_of_what_was_set_aside_or_is_left(tmp_path: Path) -> None:
    one, kept = Keeper.__new__(Keeper), [MIB] * 3
    one.rounds = SimpleNamespace(room=lambda: (3 - len(kept)) * MIB)  # type: ignore[assignment]
    one.reserve = SimpleNamespace(held=lambda: len(kept) * MIB, give=lambda: bool(kept and kept.pop()))  # type: ignore[assignment]
    assert not one._have_room(3 * MIB) and len(kept) == 3, "not even with all of it: nothing is given"
    assert one._have_room(MIB) and len(kept) == 1
    assert one._have_room(MIB) and len(kept) == 1, "there is room"


def test_a_keeper_waits_for_a_log_that_takes_no_writes_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    line, steps, told = a_line(), list[int](), list[str]()
    answers: list[Exception | None] = [RefusedError({"code": "storage_read_only"})] * 3 + [None, RefusedError({"code": "storage_read_only"})]

    def step(_keeper: Any) -> float:
        steps.append(len(steps))
        line.ended = len(steps) == len(answers)
        if (answer := answers[len(steps) - 1]) is not None:
            raise answer
        return 0.0

    monkeypatch.setattr(line, "pause", lambda _seconds: None)
    monkeypatch.setattr(keeper, "Line", lambda _shared, _ring: line)
    monkeypatch.setattr(keeper, "Keeper", lambda *_all: SimpleNamespace(step=lambda: step(None)))
    monkeypatch.setattr(keeper.os, "nice", lambda _by: 0)
    monkeypatch.setattr(keeper.signal, "pthread_sigmask", lambda _how, _which: set())
    monkeypatch.setattr(keeper.log, "warning", lambda event, **_all: told.append(event))
    shared: Any = SimpleNamespace(set=lambda _name, _value: None)
    assert keeper.run_keeper(shared, SimpleNamespace(), 0) == 0  # type: ignore[arg-type]
    assert len(steps) == 5 and len(told) == 2
    answers[:], line.ended, steps[:] = [RefusedError({"code": "topic_not_found"})], False, []
    with pytest.raises(RefusedError):
        keeper.run_keeper(shared, SimpleNamespace(), 0)  # type: ignore[arg-type]
