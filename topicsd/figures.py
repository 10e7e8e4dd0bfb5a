"""What the writer and the keeper tell about their work on files: one page of shared memory that every process has from the arbiter's fork on.

Each word is written by one process and read by any; a read of one is whole, several together are of about the same moment.
"""

from __future__ import annotations

import mmap

from topicsd.metrics import Family

WORDS = (
    # the writer
    "checkpoints", "checkpoint_failures", "checkpoint_at_ms", "checkpoint_ms", "checkpoint_held_us", "checkpoint_bytes", "files_removed",
    "files_undone", "log_held_bytes", "log_spares", "index_warm", "archive_away", "archive_refuses",
    # the keeper
    "scrub_passes", "scrub_segments", "scrub_bytes", "scrub_problems", "scrub_last_pass_ms", "scrub_last_pass_problems", "damaged", "newer",
    "damage_looked", "log_damage_looked", "log_damaged", "rewrites", "rewritten_bytes", "orphans", "cold_moved", "cold_moved_bytes", "cold_failures",
    "dropped", "seal_no_room", "cold_away", "cold_hung",
    # any worker, by adding: a count may be lost when two add in the same instant
    "cold_reads", "cold_read_bytes", "cold_unavailable", "jobs_lost",
    "exports", "export_failures", "export_bytes", "export_at_ms", "export_lag",
)  # fmt: skip
_BYTES = 4096
_SHOWN = (
    ("checkpoints", "topics_checkpoints_total", "counter", "Snapshots taken since the server began."),
    ("checkpoint_failures", "topics_checkpoint_failures_total", "counter", "Snapshots that could not be written."),
    ("checkpoint_ms", "topics_checkpoint_last_duration_ms", "gauge", "What the last snapshot took until it was on the disk."),
    ("checkpoint_held_us", "topics_checkpoint_last_pause_us", "gauge", "For how long at most it held the writer up at a time."),
    (
        "checkpoint_bytes",
        "topics_checkpoint_last_bytes",
        "gauge",
        "Bytes of the last snapshot's file.",
    ),
    ("files_removed", "topics_files_removed_total", "counter", "Log and segment files that nobody needed any more."),
    ("files_undone", "topics_files_not_removed", "gauge", "Of those, what could not be removed or archived yet."),
    ("archive_away", "topics_log_archive_away", "gauge", "1 while the archive of log files is not there: they stay where they are."),
    (
        "log_held_bytes",
        "topics_wal_held_bytes",
        "gauge",
        "Of the log, as of the last snapshot: from the oldest record that is not sealed, or not copied by a router.",
    ),
    ("log_spares", "topics_wal_spare_files", "gauge", "Files of the log that are made ahead for the next flood."),
    ("index_warm", "topics_index_warm_bytes", "gauge", "Of the index in memory: free, and kept for the next flood."),
    ("scrub_passes", "topics_scrub_passes_total", "counter", "Passes over all sealed data."),
    ("scrub_segments", "topics_scrub_segments_total", "counter", "Segments verified."),
    ("scrub_bytes", "topics_scrub_bytes_total", "counter", "Bytes verified."),
    ("scrub_problems", "topics_scrub_problems_total", "counter", "Problems found, each once a pass."),
    ("scrub_last_pass_ms", "topics_scrub_last_pass_timestamp_ms", "gauge", "When the last pass ended, 0 never."),
    ("scrub_last_pass_problems", "topics_scrub_last_pass_problems", "gauge", "What it found."),
    ("damaged", "topics_damaged_places", "gauge", "Places in sealed files that are known not to be what was written."),
    ("newer", "topics_newer_places", "gauge", "Parts of sealed files that a newer version has written: they stay as they are."),
    ("log_damaged", "topics_wal_damaged_ranges", "gauge", "Synced ranges of the log that are known not to be what was written."),
    ("seal_no_room", "topics_seal_no_room", "gauge", "1 while the disk has no room for even a small segment that is due."),
    ("dropped", "topics_segments_dropped_total", "counter", "Segments inside of a topic whose every record was deleted: their files are let go."),
    ("rewrites", "topics_segment_rewrites_total", "counter", "Files made anew: mostly dead, or a part of them damaged."),
    ("rewritten_bytes", "topics_segment_rewritten_bytes_total", "counter", "Bytes of the files they stand for."),
    ("orphans", "topics_orphan_files", "gauge", "Files that no row and no snapshot speaks of."),
    ("cold_moved", "topics_cold_segments_moved_total", "counter", "Segments whose data has been copied to the cold tier."),
    ("cold_moved_bytes", "topics_cold_moved_bytes_total", "counter", "Their bytes."),
    ("cold_failures", "topics_cold_failures_total", "counter", "Copies to the cold tier, and removals there, that failed."),
    ("cold_away", "topics_cold_tier_away", "gauge", "0, or why the cold tier is not used: 1 fails, 2 not marked, 3 another's, 4 not known, 5 hangs."),
    ("cold_hung", "topics_cold_calls_hung", "gauge", "Calls of the keeper to the cold tier that were given up and have not come back."),
    ("cold_reads", "topics_cold_reads_total", "counter", "Ranges fetched from the cold tier."),
    ("cold_read_bytes", "topics_cold_read_bytes_total", "counter", "Their bytes."),
    ("jobs_lost", "topics_jobs_lost_total", "counter", "Jobs of queues taken out because their bytes on the disk are damaged."),
    ("cold_unavailable", "topics_cold_unavailable_total", "counter", "Reads refused because the cold tier did not answer."),
    ("exports", "topics_exports_total", "counter", "Exports that POST /v0/admin/export made."),
    ("export_failures", "topics_export_failures_total", "counter", "Those that committed nothing."),
    ("export_bytes", "topics_export_bytes_total", "counter", "Bytes that they copied."),
    ("export_at_ms", "topics_export_last_timestamp_ms", "gauge", "When the last one ended, 0 never."),
    ("export_lag", "topics_export_lag_records", "gauge", "Seqs that its topics had behind what it had of them."),
)


class Figures:
    """Named 64-bit words in shared memory. Made before the first fork."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, _BYTES)).cast("Q")
        self._places = {name: place for place, name in enumerate(WORDS)}

    def get(self, name: str) -> int:
        """Return a word."""
        return self._words[self._places[name]]

    def set(self, name: str, value: int) -> None:
        """Set a word."""
        self._words[self._places[name]] = value

    def add(self, name: str, value: int = 1) -> None:
        """Add to a word that this process alone writes."""
        self._words[self._places[name]] += value

    def families(self, now_ms: int) -> list[Family]:
        """Return the metrics."""
        shown = [Family(name, kind, text, [("", {}, self.get(word))]) for word, name, kind, text in _SHOWN]
        at_ms = self.get("checkpoint_at_ms")
        age_ms = max(now_ms - at_ms, 0) if at_ms else 0
        return [*shown, Family("topics_checkpoint_age_ms", "gauge", "Since the last snapshot, 0 never.", [("", {}, age_ms)])]
