"""The engine as a library: no process, no socket, no thread; a fake clock; the reader's own rendering of every answer."""

from __future__ import annotations

import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any

import xxhash

from fakes.clock import FakeClock
from oracle.model import Refused
from oracle.snapshots import Watched
from topicsd._native import frame, scan, seal_core, upkeep
from topicsd._native.order import Order
from topicsd._native.reader import Gone, IoError, Reader
from topicsd._native.regions import Shared
from topicsd._native.sealer import Sealer
from topicsd.checkpoint import CheckpointOptions
from topicsd.engine import Options
from topicsd.engine.segments import parse_body
from topicsd.errors import TopicsError
from topicsd.figures import Figures
from topicsd.relocate import Inline, Relocation, Retain
from topicsd.segments.cold import Cold, cold_name
from topicsd.segments.names import name_of
from topicsd.segments.sealing import Policy, Rounds
from topicsd.store import Store, StoreOptions
from topicsd.upkeep import Upkeep

OUTCOMES = {1: "moved", 2: "topic_full", 3: "record_too_large", 4: "storage_read_only", 5: "throttled", 6: "throttled", 7: "throttled", 9: "unknown"}
CREATED, DEDUPED, BODY_DIFFERS = 1, 2, 4


def told(raw: bytes, payload_bytes: int) -> bytes:
    """Return a frame with what its worker would tell the writer of it."""
    head = bytearray(raw[:64])
    head[9] |= 0x80
    struct.pack_into("<QQQ", head, 40, payload_bytes, 0, xxhash.xxh3_64_intdigest(raw[64:]))
    return bytes(head) + raw[64:]


class Few:
    """A checkpoint that is being packed, so many slots in a step."""

    def __init__(self, taking: Any, step: Any) -> None:
        self.taking, self.step = taking, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.taking, name)


class Library:
    """A store on real files without threads. Each write is flushed at once; `sync()` is the only sync, unless `synced` is set."""

    def __init__(self, directory: str, clock: FakeClock, *, files: Any = None, boot: bytes = b"b" * 16, synced: bool = True, **options: Any) -> None:
        self.directory, self.clock, self.files, self.boot, self.synced = directory, clock, files, boot, synced
        self.options = options
        slots = options.get("slots", max(4096, options.get("topics_max", 0)))
        self.shared = Shared.create(topics_max=slots, index_bytes=1 << 30, ephemeral_bytes=64 << 20, body_bytes_max=1 << 20, ring_slots=1)
        self.tokens = itertools.count(1)
        self.generation = 0
        self.cold: Cold | None = None
        self.open()

    def open(self) -> None:
        self.generation += 1
        self.shared.set("generation", self.generation)
        engine = Options(topics_max=self.options.get("topics_max", 1000), bytes_max=self.options.get("bytes_max", 0))
        # Unless a test wants it otherwise each snapshot but the first two stands upon another.
        checkpoints = CheckpointOptions(*self.options.get("checkpoints", (0, 0)), self.options.get("archive"), self.options.get("absorb", 0))
        options = StoreOptions(
            shards=self.options.get("shards", 1), first_file_bytes=self.options.get("file_bytes", 1 << 20),
            file_bytes=self.options.get("file_bytes", 1 << 20), ephemeral_bytes_max=self.options.get("ephemeral_bytes_max", 8 << 20),
            keys_max=self.options.get("keys_max", 1000), engine=engine, checkpoint=checkpoints, direct_always=self.options.get("flights", 0),
            seal_reserve_bytes=self.options.get("seal_reserve_bytes", 0),
        )  # fmt: skip
        self.store = Store(self.shared, self.directory, options, self.clock, files=self.files, boot=self.boot, lock=False)
        self.watched = Watched(self.store)
        self.store.open()
        self.shared.set("ready", 1)
        self.engine, self.sequencer = self.store.engine, self.store.sequencer
        self.reader = Reader(self.shared, os.fsdecode(self.directory))

    # restarts

    def kill(self) -> None:
        """Die here: nothing is synced or written any more; the page cache stays (same boot)."""
        self._forget()
        self.open()

    def close(self) -> None:
        self.store.close()

    def stop(self) -> None:
        """End cleanly and start again."""
        self.store.close()
        self.open()

    def reboot(self) -> None:
        """Start in another boot; what the files hold is the caller's affair."""
        self._forget()
        self.boot = bytes([self.boot[0] + 1]) * 16
        self.open()

    def _forget(self) -> None:
        for shard in self.store.shards:
            shard.close()

    # sealing

    def checkpoint(self) -> None:
        """Take a snapshot now and let go of what is no longer needed."""
        self.finish_checkpoint()
        taken = self.store.checkpoints.next_number
        self.store.checkpoints.take()
        assert self.store.checkpoints.kept[-1].number == taken

    def begin_checkpoint(self) -> None:
        """Make now the moment of a checkpoint, and pack nothing yet."""
        self.finish_checkpoint()
        checkpoints = self.store.checkpoints
        assert checkpoints._begin(*checkpoints._plan())

    def pack(self, slots: int = 1) -> bool:
        """Go on with it, so many slots; tell whether there was one. It is written with the last."""
        packing = self.store.checkpoints.packing
        if packing is None:
            return False
        step = packing.taking.step
        packing.taking = Few(packing.taking, lambda _budget: step(0, slots))
        self.store.checkpoints.pack_some()
        if self.store.checkpoints.packing is not None:
            packing.taking = packing.taking.taking
        return True

    def finish_checkpoint(self) -> None:
        """Pack the rest of it, if there is one."""
        while self.pack(1 << 20):
            pass

    def log_files(self) -> int:
        """How many log files there are."""
        return sum(len(list(shard.glob("*.log"))) for shard in (Path(os.fsdecode(self.directory)) / "log").iterdir())

    def sealing(self, **policy: Any) -> Rounds:
        """The keeper's rounds, in this process."""
        sealer = Sealer(self.shared, os.fsdecode(self.directory), self.files)
        return Rounds(sealer, os.fsdecode(self.directory), self.engine.segments.publish_all, Policy(**policy))

    def seal(self, name: str, events_max: int = 1 << 30, pack: bool = False) -> dict[str, int]:
        """Seal a topic's tail, at most about `events_max` records in each segment; return what came of it."""
        slot = self.sequencer.find(name.encode())
        if slot is None:
            return {}
        self.sequencer.sync()
        rounds = self.sealing(events_max=events_max, bytes_max=0)
        if pack:
            rounds._pack([(slot, self.sequencer.topic(slot)["topic_id"])])
        else:
            rounds.seal_all(slot, self.sequencer.topic(slot)["topic_id"])
        assert not rounds.done.failed, rounds.done.failed
        return {"published": rounds.done.segments, **rounds.done.refused}

    def upkeep(self, **options: Any) -> Upkeep:
        """The keeper's care for files, in this process."""
        replace = lambda rows: [self.engine.segments.replace(*row) for row in rows]  # noqa: E731
        unknown = lambda files: self.call({"op": "segment.unknown", "files": files})["files"]  # noqa: E731
        show = lambda topics: self.call({"op": "segment.unreadable", "topics": topics}) and None  # noqa: E731
        directory, figures = os.fsdecode(self.directory), options.pop("figures", None) or Figures()
        options = {"files": self.files, "pack_number": self.sealing().next_pack, "show": show, **options}
        return Upkeep(self.shared, Path(directory), replace, unknown, figures, **options)

    def relocation(self, cold: Cold, segments: int = 1, size: int = 0, **options: Any) -> Relocation:
        """The keeper's moves to the cold tier, in this process and in order."""
        replace = lambda rows: [self.engine.segments.replace(*row) for row in rows]  # noqa: E731
        gone = lambda: self.call({"op": "segment.cold_gone"})["files"]  # noqa: E731
        removed = lambda files: self.call({"op": "segment.cold_removed", "files": files}) and None  # noqa: E731
        options = {"files": self.files, "thread": Inline(), **options}
        return Relocation(
            self.shared,
            Path(os.fsdecode(self.directory)),
            cold,
            Retain(segments, size),
            replace,
            gone,
            removed,
            lambda slot, topic_id, last: self.call({"op": "segment.may_go", "slot": slot, "topic_id": topic_id, "last_seq": last})["may"],
            self.store.figures,
            **options,
        )

    def rows(self, name: str) -> list[tuple[int, int]]:
        """The sealed ranges of a topic."""
        slot = self.sequencer.find(name.encode())
        return [(body.first_seq, body.last_seq) for body in map(parse_body, seal_core.rows(self.sequencer, slot))]

    # commands

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self.engine.call(command)
        except TopicsError as refused:
            raise Refused(refused.code) from refused
        except OSError as wrong:
            raise Refused("storage_read_only") from wrong
        if self.synced:
            self.sequencer.sync()
        return answer.body

    def put(self, name: str, **config: Any) -> bool:
        return bool(self.call({"op": "topic.put", "topic": name, "config": config})["created"])

    def drop(self, name: str, if_empty: bool = False) -> bool:
        return bool(self.call({"op": "topic.delete", "topic": name, "if_empty": if_empty})["deleted"])

    def route(self, source: str, dest: str, name: str | None = None, **members: Any) -> bool:
        """Create or change a router; tell whether it is new."""
        rule: dict[str, Any] = dict(members)
        if rule.get("filter") is not None:
            parsed = scan.parse_delete(json.dumps({"match": rule["filter"]}).encode())
            rule |= {"match_kind": parsed.match_kind, "match": (parsed.match or b"").decode()}
        command = {"op": "router.put", "router": name or f"{source}->{dest}", "source": source, "dest": dest, **rule}
        return bool(self.call(command)["created"])

    def router(self, name: str) -> dict[str, Any]:
        return self.call({"op": "router.get", "router": name})

    def routers(self) -> list[str]:
        page = self.call({"op": "router.list", "prefixes": [""], "count": 1000})
        return [router["router"] for router in page["routers"]]

    def delete(self, name: str, before_seq: int | None = None, match: Any = None) -> dict[str, Any]:
        parsed = scan.parse_delete(json.dumps({"before_seq": before_seq, "match": match}).encode())
        text = None if parsed.match is None else parsed.match.decode()
        body = self.call({"op": "records.delete", "topic": name, "before_seq": parsed.before_seq, "match_kind": parsed.match_kind, "match": text})
        return {
            "deleted": body["deleted"],
            "earliest": body["earliest_seq"],
            "head": body["head_seq"],
            "count": body["count"],
            "bytes": body["bytes"],
        }

    def append(self, name: str, records: list[dict[str, Any]], key: str | None = None, create: bool | None = None, **config: Any) -> dict[str, Any]:
        """Append and wait for the answer, as a request does."""
        token = self.send(name, records, key, create, **config)
        self.sequencer.flush()
        if self.synced:
            self.sequencer.sync()
        answers = self.answers()
        if token not in answers:  # it waits for a sync of its own: class fsync, or the first write after an idle second
            self.sequencer.sync()
            answers = self.answers()
        return answers[token]

    def send(self, name: str, records: list[dict[str, Any]], key: str | None = None, create: bool | None = None, **config: Any) -> int:
        """Hand a batch in without writing it yet; return its token."""
        body = json.dumps({"records": records, "idempotency_key": key}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        write = scan.parse_write(body)
        encoded = write.encode(None)
        slot, created = self.sequencer.find(name.encode()), False
        if slot is None:
            if create is False:
                raise Refused("topic_not_found")
            self.put(name, **config)
            slot, created = self.sequencer.find(name.encode()), True
        token = next(self.tokens)
        raw = frame.build(2, encoded, count=write.count, flags=1 if key is not None else 0, topic_id=self.sequencer.topic(slot)["topic_id"])
        if token % 2:  # as a worker sends it: measured and hashed already (port.pxd)
            raw = told(raw, write.payload_bytes)
        self.sequencer.append_frame(slot, raw, token, self.clock.wall_ms(), self.clock.mono_ms())
        if self.options.get("flights"):  # each group is written in the background while the next one is handed in
            self.sequencer.launch()
        self._created = getattr(self, "_created", set()) | ({token} if created else set())
        return token

    def answers(self) -> dict[int, dict[str, Any]]:
        """Fetch the answers there are by now. Raises Refused for a refused batch when it is the only one."""
        got: dict[int, dict[str, Any]] = {}
        while (finished := self.sequencer.take_finished()) is not None:
            token, outcome, flags, first_seq, count, head = finished
            if outcome:
                got[token] = {"refused": OUTCOMES[outcome]}
                continue
            got[token] = {
                "first_seq": first_seq, "count": count, "created": token in self._created, "deduped": bool(flags & DEDUPED),
                "body_differs": bool(flags & BODY_DIFFERS), "head": head,
            }  # fmt: skip
        if len(got) == 1 and "refused" in (only := next(iter(got.values()))):
            raise Refused(only["refused"])
        return got

    # reads

    def names(self) -> list[str]:
        """Return all topic names as a list page gives them."""
        return [name.decode() for _slot, name in Order(self.shared).page(b"", None, 1000)]

    def _slot(self, name: str) -> int:
        slot = self.reader.find(name.encode())
        if slot is None:
            raise Refused("topic_not_found")
        return int(slot)

    def diff(self, name: str, from_seq: int = 0, **members: Any) -> dict[str, Any]:
        request = scan.parse_diff(json.dumps({"from_seq": from_seq, "include_tags": True, **members}).encode())
        try:
            body, _would_wait, _next = self._warm(lambda: self.reader.diff(self._slot(name), request, self.clock.wall_ms(), 0))
        except Gone:
            raise Refused("topic_not_found") from None
        page = json.loads(body)
        if page["tombstone"] is not None:
            page["tombstone"] = {name: page["tombstone"][name] for name in ("gap_from", "gap_to", "reason", "missed_estimate")}
        for record in page["records"]:
            for name in ("tag", "node"):
                if "$" + name in record:
                    record[name] = record.pop("$" + name)
        return {name: page[name] for name in ("records", "next_from_seq", "head_seq", "earliest_seq", "tombstone")}

    def _warm(self, read: Any) -> Any:
        """Do a read, with what it lacks of the cold tier; without `cold` it fails as it does in a server whose store hangs."""
        while True:
            try:
                return read()
            except IoError:
                wanted = upkeep.cold_wanted(self.shared) if self.cold is not None else None
                if wanted is None:
                    raise
                file, begin, end = wanted
                first = begin & ~0x3FFFF
                name = cold_name(name_of(Path(), file.topic_id, file.name, file.edition))
                raw = self.cold.read(name, first, min((end + 0x3FFFF) & ~0x3FFFF, file.bytes) - first)
                upkeep.cold_put(self.shared, file.serial, file.bytes, first, raw)

    def read_all(self, name: str, from_seq: int = 0, **members: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        records, tombstones = [], []
        while True:
            page = self.diff(name, from_seq, **members)
            records += page["records"]
            tombstones += [page["tombstone"]] if page["tombstone"] else []
            if page["next_from_seq"] >= page["head_seq"]:
                return records, tombstones
            from_seq = page["next_from_seq"]

    def state(self, name: str) -> dict[str, Any]:
        body = json.loads(self.reader.state(self._slot(name), self.clock.wall_ms(), False, 0))
        return {"head": body["head_seq"], "earliest": body["earliest_seq"], "count": body["count"], "bytes": body["bytes"], "epoch": body["epoch"]}


def numbers(*values: Any, **members: Any) -> list[dict[str, Any]]:
    """Return records of these values, each with the same other members."""
    return [{"data": value, **members} for value in values]
