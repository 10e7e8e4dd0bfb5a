from typing import NamedTuple

from topicsd._native.engine_core import EngineCore
from topicsd._native.regions import Shared

class File(NamedTuple):
    """One living row of the segment-file table. `kind`: 1 files of its own, 2 a pack; `topic_id` is 0 for a pack."""

    number: int
    serial: int
    kind: int
    topic_id: int
    name: int
    edition: int
    bytes: int

class Live(NamedTuple):
    """What is alive of a file: records, their bytes, and seqs of the ranges that lead into it."""

    live: int
    live_bytes: int
    seqs: int

def listed(shared: Shared) -> list[File]:
    """Every file that is alive."""

def lives(shared: Shared, number: int, serial: int) -> bool:
    """Say whether a file still is what it was when it was listed."""

SOUND: int
MET: int
DAMAGED: int

def suspects(shared: Shared, suspicion: int) -> list[File]:
    """The living files of which somebody has found what `suspicion` says (enum suspicion)."""

def suspect(shared: Shared, number: int, serial: int, suspicion: int) -> bool:
    """Say what is known of a file; False when it has gone."""

def unreadable(shared: Shared, number: int) -> list[tuple[int, int, int, int]]:
    """What a reader can not have any more of a file's live records: [(slot, topic id, records, bytes)], by topic."""

def left_out(shared: Shared) -> list[tuple[int, int]]:
    """The topics whose counts leave something out: [(slot, topic id)]."""

def set_unreadable(core: EngineCore, slot: int, topic_id: int, records: int, size: int) -> None:
    """Say how many of a topic's live records, and of their bytes, the disk has damaged."""

def owed_begins(core: EngineCore, slot: int) -> None:
    """What a topic's rows wait for is tried again: none of them has missed it yet."""

def owed_ends(core: EngineCore, slot: int) -> None:
    """It has been tried: readers have again what has not missed it."""

def missed(core: EngineCore) -> int:
    """How many records, or whole rows, deletes by tag could not look at, ever."""

def tally(shared: Shared) -> list[tuple[int, Live]]:
    """What is alive in each file that a row leads into, by its number."""

def firsts(shared: Shared, number: int) -> list[tuple[int, int]]: ...
def ranges(shared: Shared, number: int) -> list[tuple[int, int, bytes, bytes]]:
    """The rows that lead into a file: [(slot, topic id, struct segment_body, a byte for each seq: 0xD5 where it is deleted, else 0)]."""

def dead_rows(shared: Shared) -> list[tuple[int, int, bytes]]:
    """The rows that lead into a file and have no live record and no hole: [(slot, topic id, struct segment_body)]."""

def all_deleted(shared: Shared, slot: int, topic_id: int, first_seq: int, last_seq: int) -> bool:
    """Say whether every seq of exactly this row is deleted, by its index and its marks; False too where nobody knows now."""

def is_dead(core: EngineCore, slot: int, first_seq: int, last_seq: int) -> bool:
    """Say whether the row of exactly this range leads into a file and has no live record and no hole, as far as its counts tell."""

def let_go(core: EngineCore, slot: int, first_seq: int, last_seq: int) -> None:
    """Let the row of exactly this range, if it is dead, lead nowhere."""

def row_of(core: EngineCore, slot: int, first_seq: int, last_seq: int) -> bytes | None:
    """The row of exactly this range as a struct segment_body, or None."""

def replace(core: EngineCore, slot: int, body: bytes, number: int) -> bool:
    """Let the row of exactly the body's range lead into file `number`. False when there is no such row."""

def cold_attach(shared: Shared, bytes_max: int) -> None:
    """Let this process read from the cold tier through a cache of so many bytes; again is no harm."""

def cold_wanted(shared: Shared) -> tuple[File, int, int] | None:
    """What the last read lacked of the cold tier: (file, begin, end), or None; asking takes it."""

def cold_put(shared: Shared, serial: int, bytes: int, offset: int, what: bytes) -> None:
    """Put blocks of a data part of `bytes` in; `offset` is that of a block. Raises MemoryError, ValueError."""

def cold_numbers(shared: Shared) -> tuple[int, int, int]:
    """Reads that found all they wanted, reads that did not, bytes held."""
