"""The oracle of the kill tests sees each kind of fault that it is there to see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.checker import Batch, Ledger, Seen
from e2e.client import Page, Record, parse_page


def ledger_of(durability: str = "fsync") -> Ledger:
    """A topic with ten acked batches of two records, by two producers in turn."""
    ledger = Ledger("t", durability)
    for number in range(10):
        batch = Batch(f"p{number % 2}", number + 1, (b'"%d/a"' % number, b'"%d/b"' % number), f"k{number}", f"tag{number}")
        first = 2 * number + 1
        ledger.ack(batch, {"first_seq": first, "last_seq": first + 1, "seqs": [first, first + 1], "head_seq": first + 1}, 1)
    return ledger


def shown(ledger: Ledger) -> list[Record]:
    return [Record(seq, data, tag) for seq, (data, tag) in ledger.live().items()]


def tail_of(ledger: Ledger) -> Seen:
    seen = Seen("t")
    seen.take(Page(shown(ledger), 20, 20, True, None))
    return seen


def test_what_was_acked_and_is_shown_is_right() -> None:
    ledger = ledger_of()
    assert ledger.check(shown(ledger), [], 20) == []
    assert tail_of(ledger).check(ledger) == []
    ledger.delete_before(5)
    ledger.delete_batch(ledger.acked[7])
    assert ledger.check(shown(ledger), [], 20) == []


def lose_one(records: list[Record]) -> list[Record]:
    return records[:5] + records[6:]


def lose_the_tail(records: list[Record]) -> list[Record]:
    return records[:-1]


def double_one(records: list[Record]) -> list[Record]:
    return [*records, records[3]._replace(seq=21)]


def invent_one(records: list[Record]) -> list[Record]:
    return [*records, Record(21, b'"made up"', None)]


def change_a_byte(records: list[Record]) -> list[Record]:
    return [*records[:4], records[4]._replace(data=records[4].data.replace(b"/", b"\\/")), *records[5:]]


def change_a_tag(records: list[Record]) -> list[Record]:
    return [records[0]._replace(tag=None), *records[1:]]


def swap_two(records: list[Record]) -> list[Record]:
    return [records[1]._replace(seq=1), records[0]._replace(seq=2), *records[2:]]


def repeat_one(records: list[Record]) -> list[Record]:
    return [*records[:6], records[5], *records[6:]]


@pytest.mark.parametrize("fault", [lose_one, lose_the_tail, double_one, invent_one, change_a_byte, change_a_tag, swap_two, repeat_one])
@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
def test_a_fault_of_a_read_is_seen(fault: Callable[[list[Record]], list[Record]], durability: str) -> None:
    ledger = ledger_of(durability)
    records = fault(shown(ledger))
    assert ledger.check(records, [], max(20, records[-1].seq)) != []


def test_a_deleted_record_that_comes_back_is_seen() -> None:
    ledger = ledger_of()
    before = shown(ledger)
    ledger.delete_batch(ledger.acked[2])
    assert "neither acked nor left" in ledger.check(before, [], 20)[0]


def test_a_loss_under_a_tombstone_is_right_for_ephemeral_records_alone() -> None:
    hole = {"gap_from": 1, "gap_to": 6, "reason": "mixed"}
    for durability, wrong in (("ephemeral", False), ("memory", True), ("disk", True), ("fsync", True)):
        ledger = ledger_of(durability)
        assert bool(ledger.check(shown(ledger)[6:], [hole], 20)) is wrong


def test_an_ack_that_breaks_an_order_is_seen() -> None:
    def ack(first: int, producer: str, number: int, head: int = 99) -> list[str]:
        ledger = ledger_of()
        ledger.ack(Batch(producer, number, (b"1",), "k"), {"first_seq": first, "last_seq": first, "head_seq": head}, 1)
        return ledger.problems

    assert ack(21, "p0", 11) == []
    assert ack(20, "p2", 1) != [], "a seq that was used before"
    assert ack(3, "p0", 11) != [], "behind the producer's last"
    assert ack(21, "p2", 1, head=20) != [], "above the head"


def test_a_head_that_went_back_is_seen() -> None:
    ledger = ledger_of()
    assert "head 19" in ledger.check(shown(ledger), [], 19)[0]


def test_what_a_tail_missed_saw_twice_or_saw_vanish_is_seen() -> None:
    ledger = ledger_of()
    records = shown(ledger)
    for page in (
        Page(lose_one(records), 20, 20, True, None),
        Page(change_a_byte(records), 20, 20, True, None),
        Page(repeat_one(records), 20, 20, True, None),
        Page([*records, Record(21, b'"gone"', None)], 21, 21, True, None),
    ):
        seen = Seen("t")
        seen.take(page)
        assert seen.check(ledger) != []
    again = tail_of(ledger)
    again.take(Page(records[-1:], 20, 20, True, None))
    assert again.check(ledger) != []


def test_a_page_keeps_each_data_as_it_stands() -> None:
    datas = ['{"a" : 1.0,"b":[1e400,-0]}', '"\\u00e9\\/é"', "null", "18446744073709551616", "[ ]"]
    records = ",".join(f'{{"$seq":{seq},"$ts":5,"$tag":"a\\"b","data":{data},"meta":{{"data":"x"}}}}' for seq, data in enumerate(datas, 1))
    page = parse_page(f'{{"topic":"t","records":[{records}],"next_from_seq":5,"head_seq":5,"caught_up":true,"tombstone":null}}'.encode())
    assert page == Page([Record(seq, data.encode(), 'a"b') for seq, data in enumerate(datas, 1)], 5, 5, True, None)
