"""The topic config of A §0.10: defaults, types, ranges, clamps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd.errors import Invalid
from topicsd.topic_config import MEMBERS, TopicConfig, check_topic_name, valid_topic_name

DEFAULTS = {
    "type": None, "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False, "durability": "disk", "priority": None,
    "auto_priority": True, "auto_create": True, "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip


def read(**members):
    return TopicConfig.from_json(members).to_json()


def test_an_empty_object_has_all_defaults_in_the_documented_order():
    assert read() == DEFAULTS
    assert list(read()) == list(DEFAULTS) == list(MEMBERS)


def test_null_means_absent_and_unknown_members_are_ignored():
    assert read(**dict.fromkeys(DEFAULTS), colour="red") == DEFAULTS


@pytest.mark.parametrize(
    "sent, durability",
    [
        ({}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durable": True, "durability": "disk"}, "disk"),
        ({"durability": "memory"}, "memory"),
        ({"durability": "fsync", "durable": False}, "fsync"),
        ({"durability": "ephemeral"}, "ephemeral"),
    ],
)
def test_an_explicit_durability_wins_over_durable(sent, durability):
    shown = read(**sent)
    assert (shown["durability"], shown["durable"]) == (durability, durability == "fsync")


def test_lease_and_jitter_are_stored_clamped_and_priority_as_given():
    assert read(lease_ms=1)["lease_ms"] == 100 and read(lease_ms=10**12)["lease_ms"] == 86_400_000
    assert read(claim_jitter_ms=9999)["claim_jitter_ms"] == 5000
    assert read(priority=-5000)["priority"] == -5000


UNSIGNED = ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms", "max_deliveries"]
BOOLEAN = ["durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable"]


@pytest.mark.parametrize(
    "member, value",
    [(name, value) for name in UNSIGNED for value in (-1, 1.0, 1.5, True, "1", [], {}, 2**64, float("inf"))]
    + [(name, value) for name in BOOLEAN for value in (0, 1, "true", [], {})]
    + [("priority", value) for value in (True, 1.0, "1", 2**31, -(2**31) - 1)]
    + [("type", value) for value in ("Log", "stream", 1, [])]
    + [("discard", value) for value in ("new", 1)]
    + [("durability", value) for value in ("disc", True)]
    + [("dead_letter", value) for value in ("", "-a", "a/b", "a" * 256, 1, "\ud800", "ä", "a\n")],
)
def test_a_wrong_type_or_range_names_the_field(member, value):
    with pytest.raises(Invalid) as refused:
        TopicConfig.from_json({member: value}, prefix="config")
    assert refused.value.detail["field"] == f"config.{member}"
    with pytest.raises(Invalid) as refused:
        TopicConfig.from_json({member: value})
    assert refused.value.detail["field"] == member


def test_the_largest_numbers_are_taken():
    assert read(ttl_ms=2**64 - 1)["ttl_ms"] == 2**64 - 1


def test_a_topic_is_not_its_own_dead_letter_topic():
    with pytest.raises(Invalid, match="dead_letter"):
        TopicConfig.from_json({"dead_letter": "jobs"}, topic="jobs")
    assert TopicConfig.from_json({"dead_letter": "jobs.dlq"}, topic="jobs").dead_letter == "jobs.dlq"


def test_what_it_shows_it_takes_back():
    config = TopicConfig.from_json({"type": "queue", "durability": "memory", "priority": 3, "dead_letter": "d"})
    assert TopicConfig.from_json(config.to_json()) == config
    assert TopicConfig().of_type("queue").type == "queue"


@pytest.mark.parametrize("name", ["a", "9", "a.b_c:d-e", "A" * 255, "render-queue:tenantA"])
def test_good_names(name):
    assert check_topic_name(name) == name and check_topic_name(name.encode()) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", ":a", "a b", "a/b", "ä", "a" * 256, "a\n", "a\0", "..", "a>b"])
def test_bad_names(name):
    assert not valid_topic_name(name)
    with pytest.raises(Invalid) as refused:
        check_topic_name(name.encode())
    assert refused.value.detail["field"] == "topic"


@given(st.binary(max_size=300))
def test_a_name_is_judged_byte_by_byte(name):
    allowed = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")
    expected = 1 <= len(name) <= 255 and set(name) <= allowed and name[:1].isalnum()
    assert valid_topic_name(name) is expected
