from typing import NamedTuple

from typing_extensions import Buffer

class Findings(NamedTuple):
    topic_id: int
    first_seq: int
    last_seq: int
    data_status: int
    index_status: int
    tags_status: int
    records: int
    gaps: int
    deleted: int
    odd_flags: int
    damaged_ranges: int
    damaged_bytes: int
    damaged_offset: int
    corrupt_seqs: int
    corrupt_first: int
    data_bytes: int

class Examiner:
    """Verify one segment after another, and make what is damaged again."""

    def examine(
        self,
        data: Buffer,
        index: Buffer | None = None,
        tags: Buffer | None = None,
        *,
        data_offset: int = 0,
        index_offset: int = 0,
        tags_offset: int = 0,
        data_bytes: int = 0,
        identity: tuple[int, int, int] | None = None,
    ) -> Findings: ...
    def remade(self, kind: str) -> bytes:
        """After `examine`: the header of the data part ("data"), or the whole "index" or "tags" part as it should be."""
