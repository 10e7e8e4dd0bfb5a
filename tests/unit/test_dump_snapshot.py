"""`topicsd dump` of a snapshot says what its bytes say, as docs/format/snapshot.md lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd import snapshot
from topicsd.segments.dump import dump


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(path)]


def test_a_snapshot_is_shown_row_by_row(tmp_path: Path) -> None:
    library = Library(str(tmp_path), FakeClock())
    library.put("t\u00e4", idempotency_window_ms=60_000)
    library.route("t\u00e4", "copy", guarantee="exactly_once")
    for n in range(6):
        library.append("t\u00e4", [{"data": n, "tag": f"t{n % 2}"}], key=f"k{n}")
    library.seal("t\u00e4", 3)
    library.delete("t\u00e4", match=["tag", "Eq", "t0"], before_seq=3)
    library.append("t\u00e4", [{"data": 6}])
    library.checkpoint()
    path = snapshot.path_of(tmp_path, 1)
    head, *shown = lines(path)
    assert head["snapshot"]["number"] == 1 and head["bytes"] == path.stat().st_size
    state = library.state("t\u00e4")
    (topic,) = [line for line in shown if line.get("topic") == "t\u00e4"]
    for ours, theirs in (("head", "head"), ("earliest", "earliest"), ("count", "count"), ("bytes", "bytes"), ("topic_id", "epoch")):
        assert topic[ours] == state[theirs]
    ranges = [line for line in shown if "range" in line]
    assert [line["range"] for line in ranges] == [list(row) for row in library.rows("t\u00e4")]
    assert all((tmp_path / "topics").rglob(f"{line['file']['name']:020d}.data") for line in ranges) and ranges[0]["file"]["kind"] == "own"
    assert sum(line["live"] for line in ranges) == 5
    assert [line["deleted"] for line in shown if "marks" in line] == [1]
    assert [line["run"] for line in shown if "run" in line] == [[7, 7], [1, 7]]
    assert [line["text"] for line in shown if "origin" in line] == [f"router:t\u00e4->copy:{state['epoch']}:{state['epoch']}:"]
    assert len([line for line in shown if "arrived_ms" in line]) == 6
    assert [line["section"] for line in shown if "section" in line] == [name for name, _size in head["snapshot"]["sections"]]
    library.close()


def test_a_damaged_snapshot_is_told_as_such_whatever_is_damaged(tmp_path: Path) -> None:
    library = Library(str(tmp_path), FakeClock())
    library.append("t", [{"data": 1}])
    library.checkpoint()
    library.close()
    path = snapshot.path_of(tmp_path, 1)
    raw = path.read_bytes()
    for at in (0, 7, 30, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        (line,) = lines(path)
        assert "damage" in line
    path.write_bytes(raw[: len(raw) // 2])
    assert "damage" in lines(path)[0]
