"""Queues against the plain model: random steps, restarts among them. Then every disk that a power cut can leave: nothing acked comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from fakes.workers import Workers
from oracle.queue_model import QueueModel

NODES = st.sampled_from(["a", "b"])
SEQS = st.lists(st.integers(1, 30), min_size=1, max_size=6)
RECORD = st.tuples(st.sampled_from([0, 0, 0, 50, 3_000]), st.sampled_from([0, 0, 0, 0, 7, -7, 1000]))
APPEND = st.tuples(st.just("append"), st.lists(RECORD, min_size=1, max_size=6))
CLAIM = st.tuples(st.just("claim"), NODES, st.integers(1, 6), st.sampled_from([100, 1_000, 5_000]))
FENCE = st.sampled_from(["none", "none", "right", "stale"])
STEPS = st.lists(
    st.one_of(
        APPEND,
        CLAIM,
        CLAIM,
        st.tuples(st.just("ack"), NODES, SEQS, FENCE, st.just(0)),
        st.tuples(st.just("nack"), NODES, SEQS, FENCE, st.sampled_from([0, 0, 99, 2_000])),
        st.tuples(st.just("extend"), NODES, SEQS, FENCE, st.sampled_from([100, 7_000])),
        st.tuples(st.just("advance"), st.sampled_from([1, 50, 99, 100, 101, 900, 4_000])),
        st.tuples(st.just("delete"), st.integers(1, 30)),
        st.tuples(st.sampled_from(["kill", "stop", "checkpoint", "begin_checkpoint", "pack"])),
        st.tuples(st.just("seal"), st.sampled_from([1, 4, 1000])),
    ),
    max_size=40,
)


def ids_of(model: QueueModel, seqs: list[int], fence: str) -> list[str] | None:
    """Return the lease ids that a worker may show: its current ones, or ones that are long gone."""
    if fence == "none":
        return None
    current = {job.seq: job.lease[1] for job in model.jobs.values() if job.lease is not None}
    return [current.get(seq, "lease_1") if fence == "right" else "lease_1" for seq in seqs]


def step(library: Library, workers: Workers, model: QueueModel, what: tuple[Any, ...]) -> None:
    now_ms = library.clock.mono_ms()
    model.expire(now_ms)
    match what:
        case ("append", records):
            library.append("q", [{"data": n, "delay_ms": delay, "priority": priority} for n, (delay, priority) in enumerate(records)])
            model.append(records, now_ms)
        case ("claim", node, most, lease_ms):
            wanted = model.claim(node, most, lease_ms, now_ms)
            jobs = workers.claim("q", node, most, lease_ms)
            assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(job.seq, job.deliveries) for job in wanted]
            model.named(wanted, [job["lease_id"] for job in jobs])
        case (("ack" | "nack" | "extend") as verb, node, seqs, fence, ms):
            ids = ids_of(model, seqs, fence)
            answer = getattr(workers, verb)("q", node, seqs, *([ms] if verb != "ack" else []), lease_ids=ids)
            assert answer["skipped"] == model.settle(verb, node, seqs, ids, ms, now_ms)
        case ("advance", ms):
            library.clock.advance(ms)
        case ("delete", before_seq):
            library.delete("q", before_seq=before_seq)
            model.delete_before(before_seq)
        case ("seal", events_max):
            library.seal("q", events_max)
        case (restart,):
            getattr(library, restart)()


def check(library: Library, workers: Workers, model: QueueModel) -> None:
    now_ms = library.clock.mono_ms()
    model.expire(now_ms)
    assert workers.counters("q") == model.counters(now_ms)
    assert [record["$seq"] for record in library.read_all("q")[0]] == sorted(model.jobs)


SHARDS = st.sampled_from([1, 3])  # of one, or of several: a queue and its dead letters are then in different ones


@given(STEPS, st.sampled_from([0, 0, 1, 3]), st.sampled_from([0, 0, 8]), st.sampled_from(["memory", "disk", "fsync"]), SHARDS)
def test_a_queue_does_what_the_model_does(steps: list[tuple[Any, ...]], max_deliveries: int, cap_records: int, durability: str, shards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = Library(folder, FakeClock(), shards=shards)
        library.put(
            "q", type="queue", max_deliveries=max_deliveries, dead_letter="dead" if max_deliveries else None, cap_records=cap_records,
            durability=durability,
        )  # fmt: skip
        workers, model = Workers(library), QueueModel(max_deliveries, cap_records)
        for what in steps:
            step(library, workers, model, what)
            check(library, workers, model)
        letters = library.read_all("dead")[0] if "dead" in library.names() else []
        told = [(int(each["meta"]["$dead_letter_src_seq"]), int(each["meta"]["$dead_letter_deliveries"])) for each in letters]
        assert told == model.dead
        library.close()


@given(STEPS, st.integers(0, 7), st.integers(0, 10_000), SHARDS)
def test_after_a_power_cut_no_acked_job_comes_back_and_none_is_lost(steps: list[tuple[Any, ...]], seed: int, cut: int, shards: int) -> None:
    """Class fsync: what was acked or appended stays so; what was leased or delivered may be forgotten (D §10.6)."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        files = FaultyFiles(Path(folder))
        clock = FakeClock()
        library = Library(folder, clock, files=files, shards=shards)
        library.put("q", type="queue", max_deliveries=2, dead_letter="dead", durability="fsync")
        library.put("dead", durability="fsync")
        workers, model = Workers(library), QueueModel(2)
        moments = [(len(files.calls), set(), 0, set())]  # calls so far, acked or deleted, head, dead
        trimmed: set[int] = set()
        for what in steps:
            if what[0] in ("kill", "stop"):
                continue
            before = set(model.jobs)
            step(library, workers, model, what)
            if what[0] == "delete":
                trimmed |= before - set(model.jobs)
            moments.append((len(files.calls), model.acked | trimmed, model.head, {seq for seq, _ in model.dead}))
        call = cut % (len(files.calls) + 1)
        library._forget()
        call = max(call, moments[0][0])
        files.image(call, seed, Path(other))
        gone, head = next((gone, head) for at, gone, head, _ in reversed(moments) if at <= call)
        dead_at_most = next((dead for at, _, _, dead in moments if at >= call), moments[-1][3])
        gone_at_most = next((gone for at, gone, _, _ in moments if at >= call), moments[-1][1])

        again = Library(other, clock, boot=b"c" * 16, shards=shards)
        live = {record["$seq"] for record in again.read_all("q")[0]}
        letters = [int(each["meta"]["$dead_letter_src_seq"]) for each in again.read_all("dead")[0]]

        assert not live & gone, "what was settled for certain came back"
        assert set(range(1, head + 1)) - live - set(letters) <= gone_at_most, "a job is lost"
        assert len(letters) == len(set(letters)), "a dead letter came twice"
        assert not live & set(letters), "a job is in its queue and among the dead letters"
        assert set(letters) <= dead_at_most
        claimed = Workers(again).claim("q", "x", 1000, 5_000)
        assert {job["$seq"] for job in claimed} <= live
        again.close()
