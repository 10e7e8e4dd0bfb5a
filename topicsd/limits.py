"""Every bound of the server by name, with its reason. Those that an operator may move are the defaults of topicsd/settings.py."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
U64_MAX = 2**64 - 1

# --- names ---------------------------------------------------------------------------------------------------------------

NAME_BYTES_MAX = 255  # A §1.1; a topic slot in shared memory holds so many
SYSTEM_PREFIX = "system."  # the server's own topics: clients read them, everything else is 403

# --- one write (D §1.2) --------------------------------------------------------------------------------------------------

BODY_BYTES_MAX = 64 * MIB  # backstop against batch size × record size
BODY_BYTES_HARD_MAX = GIB  # a frame's length is 32 bits, and a spill slot is made as large as a body
BATCH_RECORDS_MAX = 10_000  # bounds one append's latency and its frame
RECORD_BYTES_MAX = MIB  # data + meta
META_BYTES_MAX = 16 * KIB
META_KEYS_MAX = 64
TAG_BYTES_MAX = 256  # bounds an entry of the tag index
NODE_BYTES_MAX = 128  # nodes are identifiers
KEY_CHARS_MAX = 256  # idempotency key
DEPTH_MAX = 128  # nesting of a body, counted from its root
TAG_BYTES_HARD_MAX = 65_535  # lengths of tag and node in a record entry are 16 bits
RECORD_BYTES_HARD_MAX = GIB

# --- one read ------------------------------------------------------------------------------------------------------------

DIFF_RECORDS_MAX = 1000  # TOPICS_MAX_LIMIT
DIFF_WAIT_MS_MAX = 30_000  # a long poll is cut here: proxies end idle requests at 60 s
PAGE_SIZE = 100  # lists
PAGE_SIZE_MAX = 1000
CURSOR_CHARS_MAX = 512  # a name of 255 bytes in base64 is 340
METRICS_GROUPS_MAX = 1000  # the same of consumer groups
METRICS_WAIT_S = 1.0  # a writer that is busy for longer tells nothing of its groups
METRICS_TOPICS_MAX = 1000  # per-topic gauges; above it topics_topic_metrics_truncated is 1

# --- a request -----------------------------------------------------------------------------------------------------------

GZIP_BYTES_MIN = KIB  # smaller answers grow or gain nothing
GZIP_LEVEL = 1  # the bottleneck is the processor (A §0.3)
RETRY_AFTER_S = 1  # the least that Retry-After may say
MOVED_RETRIES_MAX = 8  # a topic deleted and made again between look-up and append, so many times in a row
RING_FULL_WAIT_MS_MAX = 2_000  # a request waits so long for room in its worker's ring before it is told 429
RING_FULL_PATIENCE_MS_MAX = 30_000  # the same with disable_backpressure (A §2)
UNPARKED_A_TICK_MAX = 256  # of those that wait for room or for pressure to pass, so many try again every 100 ms besides those who follow an answer
GROUP_COMMIT_WIDENED_MS_MAX = 40  # under pressure the interval is doubled with each rung, up to this
SCAN_THREAD_BYTES_MIN = MIB  # a larger body is scanned in a thread: about 1 ms a MiB
BODIES_BYTES_MAX = 512 * MIB  # request bodies in flight in all workers together
INFLATE_CHUNK_BYTES = 64 * KIB  # a gzipped body is inflated so many bytes at a time, under the body limit

# --- keys ----------------------------------------------------------------------------------------------------------------

API_KEYS_MAX = 1024  # every request compares all digests; an in-flight counter a key and worker stands in shared memory

# --- resources (A §11); 0 is no limit ------------------------------------------------------------------------------------

TOPICS_MAX = 100_000
INDEX_WARM_BYTES_MAX = 384 * 1024 * KIB  # of the index, kept after a flood for the next one (_native/slabs.pxd)
INDEX_WARM_SHARE = 64  # and no more than this part of the memory
TOPICS_HARD_MAX = 1 << 20  # slots of the table in shared memory
ROUTERS_MAX = 10_000
WATCH_SESSIONS_MAX = 10_000
SSE_CONNECTIONS_MAX = 10_000
SSE_CONNECTIONS_PER_KEY_MAX = 1000
INFLIGHT_PER_KEY_MAX = 1000
IDEMPOTENCY_KEYS_MAX = 1_000_000  # a topic; a key is never forgotten early, so a full window refuses (429)
CLAIM_RECORDS_MAX = 1000
CLAIM_RECORDS_HARD_MAX = 50_000  # an answer of the writer has a bit for each seq, in 8 KiB
EPHEMERAL_BYTES_MAX = GIB

# --- streams (A §7) --------------------------------------------------------------------------------------------------------

WATCH_TOPICS_MAX = 256  # topics and patterns named in one session
PATTERN_TOPICS_MAX = 4096  # topics that the patterns of one session may match: their cursors stand in shared memory
WATCH_SESSIONS_HARD_MAX = 65_536  # places in shared memory
SESSION_TTL_MS = 300_000  # without a stream for so long, a session goes
WATCH_BATCH_BYTES = 256 * KIB  # the default of max_batch_bytes in a watch
WATCH_CURSOR_CHARS_MAX = 64 * KIB
WATCH_OPTIONS_BYTES_MAX = 32 * KIB  # node ids and match, in shared memory
HEARTBEAT_MS, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 15_000, 1_000, 60_000
SLOW_CONSUMER_MS_MAX = 30_000  # a stream whose buffers stay full for so long is closed, with a cursor to resume at
STREAM_BYTES_MAX, STREAM_BYTES_MIN = MIB, 64 * KIB  # what the kernel may hold for one stream, as there are few or many
STREAMS_BYTES_MAX = 256 * MIB  # the same for all streams of a worker
FEED_SLICE_MS_MAX = 2  # then others have their turn
FEED_FIRST_NS_MAX = 200_000  # watchers are served for so long before the answers to those who wrote
TAKEOVER_LOOK_S, TAKEOVER_LOOKS_MAX = 0.002, 50  # the stream that has a session has so long to end by itself
STREAM_END_S_MAX = 2.0  # a stream that was closed has so long to take its last bytes

# --- queues --------------------------------------------------------------------------------------------------------------

LEASE_MS_MIN, LEASE_MS_MAX = 100, 86_400_000
CLAIM_JITTER_MS_MAX = 5_000
DELAY_MS_MAX = 86_400_000  # of a nack
CLAIM_WAIT_MS_MAX = 30_000  # a waiting claim is cut here, as a long poll is
MOVE_MS_MAX = 100  # what one go at moving dead letters, there or back, may hold the writer up: each may need syncs
DEAD_LETTER_RETRY_MS = 500  # between two tries to move dead letters that found no room
REDRIVE_EXAMINED_MAX = 10_000  # letters that one redrive looks at: it holds the writer up
REDRIVE_LIMIT = 1000
PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1  # stored as given, clamped to ±1000 where it is used

# --- processes -----------------------------------------------------------------------------------------------------------

WORKERS_MAX = 31  # 2 × workers + 2 ring slots of 64
LOG_SHARDS_MAX = 8
GROUP_COMMIT_MS_MAX = 1000
SEGMENT_EVENTS_MAX = 262_144  # publishing one looks at each of its index entries: about 1 ms of the writer
SEGMENT_EVENTS_HARD_MAX = 4_194_304
SEGMENT_BYTES_MAX = 64 * MIB
SEGMENT_AGE_MS_MAX = 3_600_000
CHECKPOINT_LOG_BYTES = 64 * MIB  # of the log since the last snapshot,
CHECKPOINT_FLOOD_FACTOR = 64  # while a flood goes on and nothing was sealed: that many times as much, for such a snapshot only shortens a start
CHECKPOINT_SIZE_FACTOR = 4  # and at least so many times what that one took: snapshots cost a quarter of what the log does at most
FLOOD_BYTES_PER_S = 64 * MIB  # of the log: from there on what is sealed beside it is felt by who writes
CHECKPOINT_MS = 60_000  # so often at most when nothing but files to be removed asks for one
LOG_HELD_BYTES_MAX = GIB  # written behind a record that is not sealed, or a note of a router: then it is sealed, or let go, whatever its age
LOG_HELD_BYTES_TOLD = 16 * GIB  # twice what may wait in a flood (keeper.py): more is held by something that does neither, and readiness says so
SCRUB_BYTES_PER_SECOND = 8 * MIB  # some 700 GB a day, for a few percent of one core
REWRITE_LOOK_MS = 60_000  # between two looks for files of which next to nothing is alive: each looks at every topic
DROP_LOOK_MS = 5_000  # between two looks for rows of which nothing is left: each looks at every row of every topic,
DROP_LOOK_SHARE = 100  # and takes at most this part of the keeper's time
ORPHAN_AGE_MS_MIN = 3_600_000  # a file that nobody speaks of is told when it is so old: a younger one may be about to be published
HOT_RETAIN_SEGMENTS = 8  # of each topic, where there is a cold tier
COLD_WAIT_MS = 2000  # a read waits for the cold tier for so long; then it is refused by 503
COLD_FETCH_MS = 15_000  # then a request to the tier is given up, whatever its thread does: an object store's client ends one after 10 s
COLD_FETCHES_MAX = 64  # of one request: each brings at least what the next record needs
SEAL_WAIT_S_MAX = 30.0  # of a request that asks for a topic to be sealed
# Of an export. The keeper takes all that wait when it looks, some times a second; what had no turn among so many is asked for once more, by a few.
SEALS_AT_ONCE = (32, 4)
DRAIN_MS = 10_000
DRAIN_MS_MAX = 600_000
HEAD_MS_MAX = 10_000  # from a connection's first byte to the end of its request head
BODY_IDLE_MS_MAX = 30_000  # between two pieces of a body
KEEPALIVE_S = 75  # longer than the usual proxy's 60: the client closes first
BACKLOG = 2048
OWED_DELETES_MAX = 1_000  # of a topic: deletes that wait for an index to be made again; each is done once more then
RESTART_BACKOFF_S_MAX = 1.0  # between two starts of a writer or keeper that keeps dying; the first restart is at once
WRITER_STARTS_MAX = 20  # deaths in a row without getting ready; then the server gives up rather than loop for ever

# --- consumer groups ---------------------------------------------------------------------------------------------------------
CONSUME_LIMIT = 100  # records of one consume (K)
CONSUME_TIMEOUT_S, CONSUME_TIMEOUT_S_MAX = 30, 300  # of a consume that waits (K)
VISIBILITY_MS, VISIBILITY_MS_MAX = 60_000, 43_200_000
CONSUMER_BYTES_MAX = 256
GROUPS_A_TOPIC_MAX = 1_000
GROUPS_PAGE_MAX = 100  # each line of a list costs a look at the topic's index
LEASES_A_GROUP_MAX = 10_000
GROUP_LEASES_SHOWN_MAX = 1_000
