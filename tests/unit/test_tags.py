"""The tag index against a sorted map (D 7.2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oracle.tags_oracle import TagsOracle
from topicsd._native.tags import TagIndex

TAGS = st.one_of(
    st.sampled_from(
        [b"", b"a", b"ab", b"abc", b"b", b"msg-1", b"msg-10", b"msg-11", b"msg-2", b"msg", b"\xc3\xa9", b"\xff" * 256, b"a\x00", b"a\x00\x00"]
    ),
    st.binary(max_size=4),
    st.integers(0, 300).map(lambda n: b"order-%d" % n),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TAGS, st.integers(1, 3)),
        st.tuples(st.just("remove"), TAGS, st.integers(0, 200)),
        st.tuples(st.just("eq"), TAGS, st.integers(0, 200)),
        st.tuples(st.just("prefix"), TAGS, st.integers(0, 200)),
        st.tuples(st.just("drop_below"), st.just(b""), st.integers(0, 200)),
    ),
    max_size=150,
)


@given(STEPS)
def test_the_index_finds_what_a_sorted_map_finds(steps: list[tuple[str, bytes, int]]) -> None:
    index, oracle, seq = TagIndex(), TagsOracle(), 0
    for kind, tag, number in steps:
        if kind == "add":
            seq += number
            index.add(tag, seq)
            oracle.add(tag, seq)
        elif kind == "remove":
            assert index.remove(tag, number) == oracle.remove(tag, number)
        elif kind == "eq":
            assert index.eq(tag, number) == oracle.eq(tag, number)
        elif kind == "prefix":
            assert index.prefix(tag, number) == oracle.prefix(tag, number)
        else:
            index.drop_below(number)
            oracle.drop_below(number)
    assert index.prefix(b"") == oracle.prefix(b"", 0)
    assert index.tag_list() == sorted(index.tag_list())
    assert index.postings >= oracle.live()


def test_the_empty_tag_is_a_tag() -> None:
    index = TagIndex()
    index.add(b"", 1)
    index.add(b"a", 2)
    assert index.eq(b"") == [1]
    assert index.prefix(b"") == [1, 2]


def test_a_tag_that_is_the_beginning_of_another_is_not_the_other() -> None:
    index = TagIndex()
    for seq, tag in enumerate([b"msg-10", b"msg-1", b"msg-", b"msg-100"], 1):
        index.add(tag, seq)
    assert index.eq(b"msg-1") == [2]
    assert index.prefix(b"msg-1") == [2, 1, 4]
    assert index.prefix(b"msg-2") == []
    assert index.eq(b"msg") == []


def test_a_visitor_can_stop_in_the_middle() -> None:
    index = TagIndex()
    for seq in range(1, 1001):
        index.add(b"t", seq)
    assert index.eq(b"t", visits_max=10) == list(range(1, 11))
    assert index.eq(b"t", take_below=500, visits_max=10) == list(range(1, 11))
    assert index.eq(b"t") == list(range(10, 1001))  # the tenth was seen and kept


def test_postings_far_apart_are_kept_exactly() -> None:
    index = TagIndex()
    seqs = [1, 2, 1 << 31, (1 << 32) + 1, (1 << 32) + 3, 1 << 50, (1 << 63) + 5]
    for seq in seqs:
        index.add(b"t", seq)
    assert index.eq(b"t") == seqs


def test_memory_follows_the_floor_in_small_steps() -> None:
    index = TagIndex()
    for seq in range(1, 50_001):
        index.add(b"unique-%d" % seq, seq)
        index.drop_below(max(seq - 1000, 0))
        assert index.postings <= 2 * 1000 + 8
    full = index.memory
    for _ in range(10):
        index.drop_below(50_001)
    assert index.postings == 0
    assert index.memory < full
    assert index.tag_list() == []


def test_what_one_call_leaves_later_calls_prune() -> None:
    index = TagIndex()
    for seq in range(1, 20_001):
        index.add(b"unique-%d" % seq, seq)
    index.drop_below(20_001)
    assert index.postings > 0
    assert index.prefix(b"") == []
    for _ in range(20_000 // 4096 + 1):
        index.drop_below(20_001)
    assert index.postings == 0
