"""Write a small data directory with a bit of everything, as tests/unit/test_golden.py reads it. Run once when a format changes: DEST must be new.

PYTHONPATH=tests python tests/golden/make_data.py tests/golden/data-vN
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.workers import Workers

BOOT = b"golden directory"


def fill(library: Library) -> None:
    """Do what leaves every kind of frame, row and section behind."""
    for name, config in {"plain": {}, "packed": {}, "capped": {"cap_records": 5}, "tail": {"durability": "disk"}}.items():
        library.put(name, **({"durability": "fsync"} | config))
        for n in range(10):
            library.append(
                name, [{"data": {"n": n, "k": k}, "tag": f"t{k}", "node": "n1", "meta": {"m": f"{n}"}} for k in range(2)], key=f"{name}-{n}"
            )
            library.clock.advance(10)
    library.put("queue", type="queue", dead_letter="tail", max_deliveries=2)
    library.append("queue", [{"data": n} for n in range(6)])
    jobs = Workers(library).claim("queue", "w", 2, 1000)
    Workers(library).ack("queue", "w", [jobs[0]["$seq"]])
    library.put("copies")
    library.route("plain", "copies", name="router", from_seq=0)
    consume = {"op": "group.consume", "topic": "plain", "group": "g", "start": "earliest", "limit": 3, "visibility_ms": 60_000, "consumer": "c"}
    library.call(consume)
    library.seal("plain", 6)
    library.seal("packed", pack=True)
    library.delete("plain", match=["tag", "Eq", "t1"], before_seq=9)
    library.checkpoint()
    library.append("plain", [{"data": "behind the first snapshot"}])
    library.delete("packed", before_seq=4)
    library.checkpoint()
    library.append("tail", [{"data": "behind the second snapshot"}])
    library.put("gone")
    library.drop("gone")
    library.put("gone", durability="fsync")
    library.append("gone", [{"data": "in the third snapshot alone"}])
    library.checkpoint()  # upon the first
    library.append("capped", [{"data": "behind the third snapshot", "tag": "t9"}])
    library.drop("gone")
    library.checkpoint()  # upon the second
    library.put("gone", durability="fsync")
    library.append("gone", [{"data": "again"}])
    library.checkpoint()  # upon the third
    library.append("tail", [{"data": "behind the fifth snapshot"}])


def seen(library: Library) -> dict[str, Any]:
    """What a reader of the directory finds."""
    topics = {}
    for name in library.names():
        records, tombstones = library.read_all(name)
        state = library.state(name)
        topics[name] = {"records": records, "tombstones": tombstones, "state": {key: state[key] for key in ("head", "earliest", "count", "bytes")}}
    group = library.call({"op": "group.show", "topic": "plain", "group": "g", "leases_max": 100})
    told = {"committed_offset": group["committed_offset"], "leases": len(group.get("leases", []))}
    return {"topics": topics, "group": told, "routers": library.routers()}


def main(target: Path) -> None:
    """Make it."""
    library = Library(str(target / "data"), FakeClock(), file_bytes=8192, boot=BOOT)
    fill(library)
    found = seen(library)
    library.store.close()
    for path in (target / "data" / "LOCK", target / "data" / "meta" / "reserve"):
        path.unlink(missing_ok=True)
    for path in (target / "data").rglob("*.preparing"):
        path.unlink()
    shutil.rmtree(target / "data" / "meta" / "pins", ignore_errors=True)
    (target / "expected.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
