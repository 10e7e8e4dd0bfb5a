"""A queue as one dictionary from seq to job, sorted anew for every claim: slow, plain, and right (A §10, D §10)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Job:
    seq: int
    priority: int
    ready_ms: int  # not ready before
    deliveries: int = 0
    lease: tuple[str, str, int] | None = None  # node, lease id, deadline


@dataclass
class QueueModel:
    max_deliveries: int = 0
    cap_records: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)
    dead: list[tuple[int, int]] = field(default_factory=list)  # seq, deliveries
    acked: set[int] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    head: int = 0

    def append(self, records: list[tuple[int, int]], now_ms: int) -> None:
        """Take (delay, priority) of each new job; the oldest go when there are too many."""
        for delay_ms, priority in records:
            self.head += 1
            self.jobs[self.head] = Job(self.head, max(min(priority, 1000), -1000), now_ms + delay_ms)
        while self.cap_records and len(self.jobs) > self.cap_records:
            del self.jobs[min(self.jobs)]

    def expire(self, now_ms: int) -> None:
        for job in self.jobs.values():
            if job.lease is not None and now_ms > job.lease[2]:
                job.lease = None

    def ready(self, now_ms: int) -> list[Job]:
        """Return what can be claimed, in the order in which it is: priority, then what came back, then the oldest."""
        found = [job for job in self.jobs.values() if job.lease is None and job.ready_ms <= now_ms]
        return sorted(found, key=lambda job: (-job.priority, job.deliveries == 0, job.seq))

    def claim(self, node: str, most: int, lease_ms: int, now_ms: int) -> list[Job]:
        granted: list[Job] = []
        for job in self.ready(now_ms):
            if len(granted) == most:
                break
            if self.max_deliveries and job.deliveries >= self.max_deliveries:
                self.dead.append((job.seq, job.deliveries))
                del self.jobs[job.seq]
                continue
            job.deliveries += 1
            job.lease = (node, "", now_ms + lease_ms)
            granted.append(job)
        return sorted(granted, key=lambda job: job.seq)

    def named(self, granted: list[Job], ids: list[str]) -> None:
        """Take the ids that the server has made for leases: none may have been there before."""
        assert not self.ids & set(ids)
        assert len(set(ids)) == len(ids)
        self.ids |= set(ids)
        for job, lease_id in zip(granted, ids, strict=True):
            assert job.lease is not None
            job.lease = (job.lease[0], lease_id, job.lease[2])

    def held(self, node: str, seq: int, lease_id: str | None) -> Job | None:
        job = self.jobs.get(seq)
        if job is None or job.lease is None or job.lease[0] != node or (lease_id is not None and job.lease[1] != lease_id):
            return None
        return job

    def settle(self, verb: str, node: str, seqs: list[int], ids: list[str] | None, ms: int, now_ms: int) -> list[int]:
        """Ack, nack or extend; return what was skipped."""
        skipped = []
        for place, seq in enumerate(seqs):
            job = self.held(node, seq, None if ids is None else ids[place])
            if job is None or job.lease is None or (verb == "extend" and seq in seqs[:place]):  # one that is named twice is settled once
                skipped.append(seq)
            elif verb == "ack":
                del self.jobs[seq]
                self.acked.add(seq)
            elif verb == "nack":
                job.lease, job.ready_ms = None, now_ms + ms
            else:
                job.lease = (node, job.lease[1], now_ms + ms)
        return skipped

    def delete_before(self, seq: int) -> None:
        self.jobs = {each: job for each, job in self.jobs.items() if each >= seq}

    def counters(self, now_ms: int) -> tuple[int, int, int]:
        return len(self.ready(now_ms)), sum(job.lease is not None for job in self.jobs.values()), len(self.dead)
