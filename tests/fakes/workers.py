"""Workers of queues on the engine as a library: claims and what settles them, as a worker's process sends them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from fakes.in_process import Library
from oracle.model import Refused
from topicsd._native import work

OUTCOMES = {1: "topic_not_found", 4: "storage_read_only", 9: "unknown", 32: "not_a_queue"}


class Workers:
    """Claim, ack, nack and extend on a Library. Names and answers as A §10 has them; a claim that waits for its cohort answers by `answers`."""

    def __init__(self, library: Library) -> None:
        self.engine_house = library
        self.tokens = itertools.count(1 << 40)
        self.held: dict[int, tuple[str, int, list[int]]] = {}

    def slot(self, queue: str) -> int:
        slot = self.engine_house.sequencer.find(queue.encode())
        if slot is None:
            raise Refused("topic_not_found")
        return int(slot)

    def _send(self, kind: int, queue: str, payload: bytes) -> int:
        library, token = self.engine_house, next(self.tokens)
        library.sequencer.queue_call(kind, self.slot(queue), payload, token, library.clock.wall_ms(), library.clock.mono_ms())
        library.sequencer.flush()
        library.engine.queues.serve()
        if library.synced:
            library.sequencer.sync()
        return token

    def answers(self) -> dict[int, Any]:
        """Take the answers there are, completions by token."""
        got = {}
        while (found := self.engine_house.sequencer.take_lease()) is not None:
            got[found[0]] = work.completion_of(*found[1:])
        return got

    def _topic_id(self, queue: str) -> int:
        return int(self.engine_house.sequencer.topic(self.slot(queue))["topic_id"])

    def send_claim(self, queue: str, node: str = "w", most: int = 1, lease_ms: int = 0) -> int:
        return self._send(work.CLAIM, queue, work.encode_claim(self._topic_id(queue), node.encode(), most, lease_ms))

    def claim(self, queue: str, node: str = "w", most: int = 1, lease_ms: int = 0) -> list[dict[str, Any]]:
        """Claim without a cohort; the jobs as a worker shows them."""
        token = self.send_claim(queue, node, most, lease_ms)
        answers = self.answers()
        if token not in answers:
            self.engine_house.sequencer.sync()
            answers = self.answers()
        return self.jobs(queue, answers[token])

    def jobs(self, queue: str, completion: Any) -> list[dict[str, Any]]:
        if completion.status:
            raise Refused(OUTCOMES[completion.status])
        _, jobs = work.granted(completion.payload, completion.count, completion.first_seq)
        now_ms = self.engine_house.clock.wall_ms()
        rendered = work.render_jobs(self.engine_house.reader, self.slot(queue), self._topic_id(queue), jobs, completion.values[2], now_ms)
        return [json.loads(each) for each in rendered if each is not None]

    def work(self, queue: str, node: str, most: int, held: list[tuple[int, int]]) -> tuple[list[bool], list[tuple[int, int, int]]]:
        """Ask as a work stream does."""
        token = self._send(work.CLAIM, queue, work.encode_claim(self._topic_id(queue), node.encode(), most, 0, True, held))
        completion = self.answers()[token]
        return work.granted(completion.payload, completion.count, completion.first_seq, len(held))

    def settle(self, verb: int, queue: str, node: str, seqs: list[int], ms: int = 0, lease_ids: list[str] | None = None) -> dict[str, Any]:
        tokens = None if lease_ids is None else [int(each.removeprefix("lease_"), 16) for each in lease_ids]
        token = self._send(work.SETTLE, queue, work.encode_settle(self._topic_id(queue), verb, node.encode(), seqs, ms, tokens))
        answers = self.answers()
        if token not in answers:
            self.engine_house.sequencer.sync()
            answers = self.answers()
        completion = answers[token]
        if completion.status:
            raise Refused(OUTCOMES[completion.status])
        done = work.settled(completion.payload, len(seqs))
        return {
            "done": completion.count, "skipped": [seq for seq, ok in zip(seqs, done, strict=True) if not ok],
            "ready": completion.values[0], "in_flight": completion.values[1], "deadline": completion.values[2],
        }  # fmt: skip

    def ack(self, queue: str, node: str, seqs: list[int], lease_ids: list[str] | None = None) -> dict[str, Any]:
        return self.settle(work.ACK, queue, node, seqs, 0, lease_ids)

    def nack(self, queue: str, node: str, seqs: list[int], delay_ms: int = 0, lease_ids: list[str] | None = None) -> dict[str, Any]:
        return self.settle(work.RELEASE, queue, node, seqs, delay_ms, lease_ids)

    def extend(self, queue: str, node: str, seqs: list[int], lease_ms: int, lease_ids: list[str] | None = None) -> dict[str, Any]:
        return self.settle(work.EXTEND, queue, node, seqs, lease_ms, lease_ids)

    def counters(self, queue: str) -> tuple[int, int, int]:
        """Return (ready, in flight, dead-lettered), with all that is due by now."""
        self.engine_house.sequencer.set_now(self.engine_house.clock.wall_ms(), self.engine_house.clock.mono_ms())
        self.engine_house.engine.tick()
        body = json.loads(self.engine_house.reader.state(self.slot(queue), self.engine_house.clock.wall_ms(), False, 0))["queue"]
        return body["ready"], body["in_flight"], body["dead_lettered"]
