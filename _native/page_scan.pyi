from topicsd._native.segment_scan import Scanner

class PageError(ValueError):
    """Say that an answer is no page of diff."""

class PageScanner(Scanner):
    """Answers of diff into record batches: `open_page` one, `fill_page` until it says False, `take` when `full` and at the end."""

    def open_page(self, topic: bytes, body: bytes) -> bytes: ...
    def fill_page(self, last_seq: int, *, since: int | None = None, until: int | None = None) -> bool: ...
