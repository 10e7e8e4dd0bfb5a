"""JSON schemas of bodies and answers, for `/v0/openapi.json` (A §1 to §10). An answer may have members that are not listed."""

from __future__ import annotations

from typing import Any

from topicsd import limits

Schema = dict[str, Any]

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
U64: Schema = {"type": "integer", "minimum": 0, "maximum": limits.U64_MAX}
COUNT: Schema = {"type": "integer", "minimum": 0}
TIME: Schema = {"type": "integer", "description": "milliseconds since 1970"}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
ANY: Schema = {}
NAME: Schema = {"type": "string", "pattern": NAME_PATTERN}
NODE: Schema = {"type": "string", "maxLength": limits.NODE_BYTES_MAX}
META: Schema = {"type": "object", "additionalProperties": TEXT, "maxProperties": limits.META_KEYS_MAX}
SEQS: Schema = {"type": "array", "items": U64}
RECORDS: Schema = {"type": "array", "items": {"$ref": "#/components/schemas/Record"}}


def ref(name: str) -> Schema:
    """Point at a schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """Allow null, which means absent in a body."""
    return {"anyOf": [schema, {"type": "null"}]}


def members(required: dict[str, Schema], **optional: Schema) -> Schema:
    """Describe an object: members that are always there, and others. Further ones are allowed."""
    return {"type": "object", "properties": required | optional, "required": sorted(required)}


def list_of(name: str, **optional: Schema) -> Schema:
    """Describe a page of a list."""
    return members({name: {"type": "array", "items": {"type": "object"}}, "performance": ref("Performance")}, next_cursor=TEXT, **optional)


MATCH: Schema = {
    "description": '["tag","Eq",text] or ["tag","Glob",prefix*]; a bare text is Eq',
    "anyOf": [
        TEXT,
        {"type": "array", "minItems": 3, "maxItems": 3, "prefixItems": [{"const": "tag"}, {"const": "Eq"}, TEXT]},
        {"type": "array", "minItems": 3, "maxItems": 3, "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": r"\*$"}]},
    ],
}
INCLUDES = {"include_tags": FLAG, "include_meta": FLAG, "include_data": FLAG}
PAGE = {"from_seq": U64, "limit": COUNT, "max_batch_bytes": COUNT, "match": MATCH, **INCLUDES}
NODES: Schema = {"anyOf": [NODE, {"type": "array", "items": NODE}]}
CONFIG = {
    "type": {"enum": ["log", "queue"]},
    "ttl_ms": U64,
    "cap_records": U64,
    "cap_bytes": U64,
    "discard": {"enum": ["old", "reject"]},
    "durable": FLAG,
    "durability": {"enum": ["ephemeral", "memory", "disk", "fsync"]},
    "priority": maybe({"type": "integer", "minimum": limits.PRIORITY_MIN, "maximum": limits.PRIORITY_MAX}),
    "auto_priority": FLAG,
    "auto_create": FLAG,
    "idempotency_window_ms": U64,
    "dedupe_node": FLAG,
    "lease_ms": U64,
    "claim_jitter_ms": U64,
    "max_deliveries": U64,
    "dead_letter": maybe(NAME),
    "leases_durable": FLAG,
}
WRITE_RECORD = members({"data": ANY}, tag=TEXT, node=NODE, meta=META, delay_ms=U64, priority={"type": "integer", "minimum": -1000, "maximum": 1000})
POSITIONS = {"head_seq": U64, "earliest_seq": U64}
COUNTERS = {"topic": NAME, "skipped": SEQS, "ready": COUNT, "in_flight": COUNT, "performance": ref("Performance")}
HELD = {"node": NODE, "seqs": {"type": "array", "items": U64, "minItems": 1, "maxItems": limits.CLAIM_RECORDS_MAX}}
LEASE_IDS: Schema = {"type": "array", "items": TEXT}
ROUTER = {
    "preserve_node": FLAG,
    "preserve_tag": FLAG,
    "filter": maybe(MATCH),
    "allow_cycle": FLAG,
    "guarantee": {"enum": ["at_least_once", "exactly_once"]},
}
OFFSET = {"anyOf": [{"enum": ["earliest", "latest"]}, members({"offset": U64})]}

SCHEMAS: dict[str, Schema] = {
    "Error": members({"error": members({"code": TEXT, "message": TEXT}, detail={"type": "object"})}),
    "Performance": members({"server_total_ms": NUMBER}, wal_append_ms=NUMBER, fsync_ms=NUMBER, throttle_wait_ms=NUMBER, records_scanned=COUNT),
    "Config": {
        "type": "object",
        "properties": {name: schema if name in ("priority", "dead_letter") else maybe(schema) for name, schema in CONFIG.items()},
    },
    "FullConfig": members(CONFIG),
    "Match": MATCH,
    "Record": members({"$seq": U64, "$ts": TIME}, **{"$node": TEXT, "$tag": TEXT}, data=ANY, meta=META),
    "Tombstone": members(
        {"gap_from": U64, "gap_to": U64, "reason": {"enum": ["cap", "ttl", "mixed", "recreated", "source_trim", "corrupt"]}, **POSITIONS},
        missed_estimate=COUNT,
    ),
    "TopicPut": members({"topic": NAME, "created": FLAG, "config": ref("FullConfig"), "performance": ref("Performance")}, epoch=COUNT),
    "TopicState": members(
        {"topic": NAME, "type": CONFIG["type"], **POSITIONS, "next_seq": U64, "count": COUNT, "bytes": COUNT, "config": ref("FullConfig")}
        | {"effective_priority": {"type": "integer"}, "last_write_ts": maybe(TIME), "last_read_ts": maybe(TIME), "performance": ref("Performance")},
        epoch=COUNT,
        queue=members({"ready": COUNT, "in_flight": COUNT, "dead_lettered": COUNT}),
    ),
    "TopicList": list_of("topics"),
    "TopicDelete": members({"topic": NAME, "deleted": FLAG, "performance": ref("Performance")}, routers_removed={"type": "array", "items": TEXT}),
    "Write": members(
        {"records": {"type": "array", "items": WRITE_RECORD, "minItems": 1, "maxItems": limits.BATCH_RECORDS_MAX}},
        node=NODE,
        idempotency_key={"type": "string", "maxLength": limits.KEY_CHARS_MAX},
        create=FLAG,
        config=ref("Config"),
        disable_backpressure=FLAG,
    ),
    "Written": members(
        {"topic": NAME, "first_seq": U64, "last_seq": U64, "head_seq": U64, "count": COUNT, "created": FLAG, "deduped": FLAG}
        | {"performance": ref("Performance")},
        seqs=SEQS,
        body_differs=FLAG,
    ),
    "Diff": members({}, **PAGE, node=NODES, wait_ms=COUNT, epoch=COUNT, from_ts=COUNT),
    "Page": members(
        {"topic": NAME, "records": RECORDS, "next_from_seq": U64, **POSITIONS, "caught_up": FLAG, "tombstone": maybe(ref("Tombstone")), "lag": COUNT}
        | {"performance": ref("Performance")},
        epoch=COUNT,
    ),
    "Delete": {**members({}, before_seq=U64, match=MATCH), "anyOf": [{"required": ["before_seq"]}, {"required": ["match"]}]},
    "Deleted": members({"topic": NAME, "deleted": COUNT, **POSITIONS, "count": COUNT, "bytes": COUNT, "performance": ref("Performance")}),
    "Claim": members({"node": NODE}, max={"type": "integer", "minimum": 1}, lease_ms=U64, wait_ms=COUNT),
    "Claimed": members(
        {"topic": NAME, "claimed": {"type": "array", "items": ref("Job")}, "count": COUNT, "ready": COUNT, "performance": ref("Performance")}
    ),
    "Job": members({"$seq": U64, "$ts": TIME, "lease_id": TEXT, "deadline": TIME, "deliveries": COUNT}, **{"$tag": TEXT}, data=ANY, meta=META),
    "JobAck": members(HELD, lease_ids=LEASE_IDS),
    "JobAcked": members({"acked": COUNT, **COUNTERS}),
    "Nack": members(HELD, delay_ms=U64, lease_ids=LEASE_IDS),
    "Nacked": members({"nacked": COUNT, **COUNTERS}),
    "Extend": members({**HELD, "lease_ms": U64}, lease_ids=LEASE_IDS),
    "Extended": members(
        {"topic": NAME, "extended": COUNT, "skipped": SEQS, "deadlines": {"type": "object", "additionalProperties": TIME}}
        | {"performance": ref("Performance")}
    ),
    "Router": members({"source": NAME, "dest": NAME}, **ROUTER, create_dest=FLAG, from_seq=U64),
    "RouterPut": members({"router": TEXT, "created": FLAG, "source": NAME, "dest": NAME, "performance": ref("Performance")}, **ROUTER),
    "RouterState": members({"router": TEXT, "source": NAME, "dest": NAME, "forwarded_total": COUNT, "performance": ref("Performance")}, **ROUTER),
    "RouterList": list_of("routers"),
    "RouterDelete": members({"router": TEXT, "deleted": FLAG, "performance": ref("Performance")}),
    "Watch": members(
        {"topics": {"type": "object", "additionalProperties": members({}, from_seq=U64, tail=FLAG), "minProperties": 1}},
        node=NODES,
        limit=COUNT,
        max_batch_bytes=COUNT,
        heartbeat_ms=COUNT,
        match=MATCH,
        **INCLUDES,
        consistency={"enum": ["eventual", "strong"]},
        opening_id=FLAG,
        cursor=ANY,
    ),
    "Session": members(
        {"wid": TEXT, "stream_url": TEXT, "session_ttl_ms": COUNT}
        | {"topics": {"type": "object", "additionalProperties": members({"from_seq": U64, **POSITIONS})}},
        performance=ref("Performance"),
    ),
    "Consume": members(
        {},
        start=OFFSET,
        limit=COUNT,
        timeout_seconds=COUNT,
        visibility_timeout_ms=COUNT,
        consumer_id=TEXT,
        max_batch_bytes=COUNT,
        partition_id=COUNT,
        **INCLUDES,
    ),
    "Consumed": members({"topic": NAME, "group": TEXT, "records": RECORDS, "committed_offset": U64, "performance": ref("Performance")}),
    "GroupAck": members({"upto_offset": U64}, from_offset=U64, consumer_id=TEXT, partition_id=COUNT),
    "GroupAcked": members({"topic": NAME, "group": TEXT, "performance": ref("Performance")}, acknowledged_offset=U64),
    "GroupReset": members({"to": OFFSET}),
    "Group": members({"topic": NAME, "group": TEXT}, performance=ref("Performance")),
    "GroupList": members({"groups": {"type": "array", "items": {"type": "object"}}}, performance=ref("Performance")),
    "Health": members({"status": {"const": "ok"}, "version": TEXT, "uptime_ms": COUNT}),
    "Ready": members(
        {"status": {"const": "ready"}, "wal_replay_complete": FLAG, "topics": COUNT}, degraded=FLAG, reasons={"type": "array", "items": TEXT}
    ),
    "Metrics": {"type": "object"},
    "Anything": {"type": "object"},
}
