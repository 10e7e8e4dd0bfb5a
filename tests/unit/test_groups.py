"""Consumer groups by the rules of K and CLARIFICATIONS, on the engine as a library with a fake clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from oracle.model import Refused
from topicsd.engine import frames
from topicsd.engine.groups import Groups


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(str(tmp_path), FakeClock())


def fill(library: Library, count: int, topic: str = "t", **config: Any) -> None:
    library.append(topic, [{"data": n} for n in range(count)], **config)


def consume(library: Library, limit: int = 10, consumer: str = "", start: Any = "earliest", visibility_ms: int = 60_000, group: str = "g") -> Any:
    return library.call(
        {
            "op": "group.consume",
            "topic": "t",
            "group": group,
            "start": start,
            "limit": limit,
            "visibility_ms": visibility_ms,
            "consumer": consumer,
        }
    )


def ack(library: Library, upto: int, consumer: str | None = None, group: str = "g") -> int:
    answer = library.call({"op": "group.ack", "topic": "t", "group": group, "upto_offset": upto, "consumer": consumer})
    return int(answer["acknowledged_offset"])


def show(library: Library, group: str = "g") -> Any:
    return library.call({"op": "group.show", "topic": "t", "group": group, "leases_max": 100})


def test_a_group_begins_where_start_says_and_stays_there(library: Library) -> None:
    fill(library, 5)
    assert consume(library, start="earliest", group="a")["range"] == [1, 5]
    assert consume(library, start="latest", group="b")["range"] is None
    assert consume(library, start=3, group="c")["range"] == [3, 5]
    fill(library, 2)
    assert consume(library, start="earliest", group="b")["range"] == [6, 7], "latest was pinned when the group was made"


def test_latest_on_an_empty_topic_never_drifts(library: Library) -> None:
    library.put("t")
    assert consume(library, start="latest")["range"] is None
    fill(library, 3)
    assert consume(library, start="latest")["range"] == [1, 3]


def test_a_start_above_the_next_offset_is_refused(library: Library) -> None:
    fill(library, 5)
    assert consume(library, start=6)["range"] is None
    with pytest.raises(Refused, match="invalid_request"):
        consume(library, start=7, group="h")


def test_consumers_get_ranges_that_do_not_overlap(library: Library) -> None:
    fill(library, 25)
    assert consume(library, consumer="a")["range"] == [1, 10]
    assert consume(library, consumer="b")["range"] == [11, 20]
    assert consume(library, consumer="a")["range"] == [21, 25]
    assert consume(library, consumer="b")["range"] is None


def test_an_expired_lease_is_delivered_again_and_a_live_one_is_not(library: Library) -> None:
    fill(library, 20)
    consume(library, consumer="a", visibility_ms=1_000)
    consume(library, consumer="b", visibility_ms=5_000)
    library.clock.advance(999)
    assert consume(library, consumer="c")["range"] is None
    library.clock.advance(1)
    again = consume(library, consumer="c", limit=4)
    assert (again["range"], again["deliveries"]) == ([1, 4], 2)
    assert consume(library, consumer="c")["range"] == [5, 10]
    assert consume(library, consumer="c")["range"] is None


def test_a_waiting_consumer_is_told_when_the_next_lease_ends(library: Library) -> None:
    fill(library, 10)
    consume(library, visibility_ms=1_500)
    library.clock.advance(400)
    assert consume(library)["wait_ms"] == 1_100


def test_a_plain_ack_is_cumulative_and_monotonic(library: Library) -> None:
    fill(library, 20)
    consume(library, consumer="a")
    consume(library, consumer="b")
    assert ack(library, 15) == 15
    assert ack(library, 4) == 15
    library.clock.advance(60_000)
    assert consume(library)["range"] == [16, 20]


def test_a_plain_ack_may_pass_what_was_never_leased(library: Library) -> None:
    fill(library, 20)
    consume(library, limit=5)
    assert ack(library, 12) == 12
    assert consume(library)["range"] == [13, 20]


def test_an_ack_past_the_head_is_refused(library: Library) -> None:
    fill(library, 3)
    consume(library)
    with pytest.raises(Refused, match="invalid_request"):
        ack(library, 4)
    assert ack(library, 3) == 3


def test_an_ack_of_a_group_that_is_not_there_is_not_found(library: Library) -> None:
    fill(library, 3)
    with pytest.raises(Refused, match="not_found"):
        ack(library, 1)


def test_a_consumers_ack_settles_its_own_leases_alone(library: Library) -> None:
    fill(library, 30)
    for consumer in "aba":
        consume(library, consumer=consumer)
    assert ack(library, 30, "a") == 10, "the contiguous prefix ends where b's lease begins"
    assert ack(library, 15, "b") == 15
    assert ack(library, 30, "b") == 30


def test_a_consumers_ack_below_its_lease_settles_nothing(library: Library) -> None:
    fill(library, 20)
    consume(library, consumer="a")
    consume(library, consumer="b")
    assert ack(library, 10, "b") == 0
    assert ack(library, 20, "c") == 0


def test_an_expired_lease_can_not_be_acked_by_its_consumer(library: Library) -> None:
    fill(library, 10)
    consume(library, consumer="a", visibility_ms=1_000)
    library.clock.advance(1_000)
    assert ack(library, 10, "a") == 0
    assert consume(library, consumer="b")["range"] == [1, 10]


def test_what_was_settled_out_of_order_is_not_delivered_again(library: Library) -> None:
    fill(library, 30)
    for consumer in "abc":
        consume(library, consumer=consumer, visibility_ms=1_000)
    ack(library, 30, "b")
    library.clock.advance(1_000)
    assert consume(library, limit=100)["range"] == [1, 10]
    assert consume(library, limit=100)["range"] == [21, 30]
    assert ack(library, 10) == 20


def test_a_reset_ends_all_leases_and_moves_both_ways(library: Library) -> None:
    fill(library, 20)
    consume(library, consumer="a")
    library.call({"op": "group.reset", "topic": "t", "group": "g", "to": "latest"})
    assert consume(library)["range"] is None
    assert ack(library, 10, "a") == 20
    library.call({"op": "group.reset", "topic": "t", "group": "g", "to": 5})
    assert consume(library, limit=2)["range"] == [5, 6]
    library.call({"op": "group.reset", "topic": "t", "group": "g", "committed": 17})
    assert consume(library)["range"] == [18, 20]


def test_a_deleted_group_is_gone_and_may_be_made_again(library: Library) -> None:
    fill(library, 5)
    consume(library)
    delete = {"op": "group.delete", "topic": "t", "group": "g"}
    assert library.call(delete)["deleted"] is True
    assert library.call(delete)["deleted"] is False
    assert consume(library, start="latest")["range"] is None


def test_groups_go_with_their_topic(library: Library) -> None:
    fill(library, 5)
    consume(library)
    library.drop("t")
    fill(library, 7)
    assert consume(library)["range"] == [1, 7]


def test_a_range_covers_what_retention_took(library: Library) -> None:
    fill(library, 10)
    consume(library, limit=2)
    library.put("t", cap_records=3)
    fill(library, 1)
    assert consume(library, limit=2)["range"] == [3, 10]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_position_leases_and_order_survive_a_restart(library: Library, end: str) -> None:
    fill(library, 40)
    for consumer in "abcd":
        consume(library, consumer=consumer, visibility_ms=10_000)
    ack(library, 10)
    ack(library, 30, "c")
    library.clock.advance(4_000)
    getattr(library, end)()
    assert show(library)["committed_offset"] == 10
    assert consume(library)["range"] is None, "the leases of b and d live on"
    library.clock.advance(5_999)
    assert consume(library)["range"] is None
    library.clock.advance(1)
    assert consume(library, limit=100)["range"] == [11, 20]
    assert consume(library, limit=100)["range"] == [31, 40]
    assert ack(library, 20) == 30


def test_a_clock_that_steps_back_lengthens_no_lease(library: Library) -> None:
    fill(library, 10)
    consume(library, visibility_ms=10_000)
    library.clock.advance(4_000)
    ack(library, 2)
    library.clock.step(-86_400_000)
    library.kill()
    library.clock.advance(6_000)
    assert consume(library)["range"] == [3, 10]


def test_queues_have_no_groups(library: Library) -> None:
    library.put("t", type="queue")
    with pytest.raises(Refused, match="topic_exists_incompatible"):
        consume(library)


def test_a_row_of_a_snapshot_holds_what_the_frames_below_it_made(library: Library) -> None:
    fill(library, 40)
    for consumer in "abcd":
        consume(library, consumer=consumer, visibility_ms=10_000)
    ack(library, 30, "c")
    library.clock.advance(4_000)
    (row,) = [library.engine.groups.row(topic_id) for topic_id in library.engine.groups.by_topic]
    assert row is not None
    before = show(library)
    other = Groups(library.engine)
    other.load(row, 1)
    library.engine.groups, kept = other, library.engine.groups
    other.replay(row.key, row.shard, row.position, frames.json_body({"k": "reset", "g": "g", "c": 7, "t": 0}))
    library.engine._commands |= other.commands()
    assert show(library) == before, "leases and all; a frame that the row holds changes nothing"
    other.replay(row.key, row.shard, row.position + 8, frames.json_body({"k": "reset", "g": "g", "c": 7, "t": 0}))
    assert show(library)["committed_offset"] == 7
    assert kept is not other


def test_the_place_of_the_last_frame_is_where_replay_meets_it(library: Library) -> None:
    fill(library, 10)
    consume(library)
    ack(library, 3)
    place = dict(library.engine.groups.applied)
    library.kill()
    assert library.engine.groups.applied == place


def test_the_metrics_of_groups_are_bounded_and_count_those_that_are_not_shown(library: Library) -> None:
    fill(library, 5)
    fill(library, 3, topic="u")
    for name in ("b", "a"):
        consume(library, limit=2, group=name)
    ack(library, 2, group="a")
    library.call({"op": "group.consume", "topic": "u", "group": "a", "start": "latest", "limit": 1, "visibility_ms": 1000, "consumer": ""})
    told = library.call({"op": "group.metrics", "limit": 10})
    shown = [(row["topic"], row["group"], row["committed_offset"], row["head_seq"], row["leased"], row["to_redeliver"]) for row in told["groups"]]
    assert shown == [("t", "a", 2, 5, 0, 0), ("t", "b", 0, 5, 2, 0), ("u", "a", 3, 3, 0, 0)]
    assert told["total"] == 3 and told["truncated"] is False
    told = library.call({"op": "group.metrics", "limit": 2})
    assert [row["group"] for row in told["groups"]] == ["a", "b"] and told["total"] == 3 and told["truncated"] is True
