"""Read all sealed data again and again, slowly, and tell what is not as it was written. The keeper runs it; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from topicsd._native.segment import SegmentError
from topicsd.segments import names
from topicsd.segments.names import Name, Place
from topicsd.segments.newer import NewerFormatError
from topicsd.segments.verify import Problem, Verifier, check_cold, load, pack_places

PROBLEMS_MAX = 1000  # kept to be shown; all are counted
PASS_PAUSE_MS = 60_000  # an empty store must not be listed in a loop


@dataclass(frozen=True)
class Item:
    """A segment to look at. `deleted` asks for the manifest's count of deletes (None: unknown), `gone` whether it has been retired meanwhile.

    `cold`: its data part is in the cold tier; index, tags and flags are looked at.
    """

    place: Place
    deleted: Callable[[], int | None] = lambda: None
    gone: Callable[[], bool] = lambda: False
    cold: Name | None = None


@dataclass
class Numbers:
    """What the scrub has done since the process began."""

    passes: int = 0
    segments: int = 0
    bytes: int = 0
    problems: int = 0
    last_pass_ms: int = 0  # wall clock at its end; 0: never
    last_pass_problems: int = 0

    def metrics(self) -> dict[str, int]:
        """By the names of /metrics."""
        return {
            "topics_scrub_passes_total": self.passes, "topics_scrub_segments_total": self.segments, "topics_scrub_bytes_total": self.bytes,
            "topics_scrub_problems_total": self.problems, "topics_scrub_last_pass_timestamp_ms": self.last_pass_ms,
            "topics_scrub_last_pass_problems": self.last_pass_problems,
        }  # fmt: skip


@dataclass
class Scrubber:
    """One segment a step, at most `bytes_per_second` over time.

    `source` lists what there is at the beginning of each pass. `told` gets each new problem once a pass.
    """

    source: Callable[[], Iterable[Item]]
    bytes_per_second: int
    told: Callable[[Problem], None] = lambda problem: None
    numbers: Numbers = field(default_factory=Numbers)
    problems: list[Problem] = field(default_factory=list)  # of the last whole pass

    def __post_init__(self) -> None:
        """Begin before the first pass."""
        self._verifier = Verifier()
        self._items: Iterator[Item] | None = None
        self._ready_ms = 0.0
        self._found: list[Problem] = []
        self._count = 0

    def step(self, mono_ms: int, wall_ms: int) -> int:
        """Verify one segment if it is time. How many ms to wait before the next step."""
        if mono_ms < self._ready_ms:
            return int(self._ready_ms - mono_ms) + 1
        if self._items is None:
            self._items, self._found, self._count = iter(self.source()), [], 0
        item = next(self._items, None)
        if item is None:
            self._end(wall_ms)
            self._ready_ms = mono_ms + PASS_PAUSE_MS
        else:
            self._ready_ms = max(self._ready_ms, mono_ms) + self._look(item) * 1000 / max(self.bytes_per_second, 1)
        return max(int(self._ready_ms - mono_ms), 0)

    def pay(self, read: int) -> None:
        """Let something else that was read count against the rate."""
        self._ready_ms += read * 1000 / max(self.bytes_per_second, 1)

    def _end(self, wall_ms: int) -> None:
        self._items = None
        self._verifier.forget()
        self.problems = self._found
        self.numbers.passes += 1
        self.numbers.last_pass_ms = wall_ms
        self.numbers.last_pass_problems = self._count

    def _look(self, item: Item) -> int:
        """Bytes read."""
        problems, read = look(self._verifier, item)
        self.numbers.segments += 1
        self.numbers.bytes += read
        self.numbers.problems += len(problems)
        self._count += len(problems)
        for problem in problems:
            self.told(problem)
        self._found += problems[: max(PROBLEMS_MAX - len(self._found), 0)]
        return read


def look(verifier: Verifier, item: Item) -> tuple[list[Problem], int]:
    """Verify a segment: what is not as it was written, and how many bytes were read."""
    problems, read = _check(verifier, item)
    if problems and not item.gone():
        # A delete may have come between the count and the byte, a retirement between the list and the file: look once more.
        verifier.forget()
        problems, again = _check(verifier, item)
        read += again
    return ([] if item.gone() else problems), read


def _check(verifier: Verifier, item: Item) -> tuple[list[Problem], int]:
    before = item.deleted()
    try:
        checked = check_cold(item.cold) if item.cold else verifier.check(item.place, deleted=before)
    except NewerFormatError as newer:
        return [newer_problem(newer)], 0
    except (SegmentError, OSError) as wrong:
        return [Problem(item.place.data.path, item.place.data.offset, str(wrong), loses=True)], 0
    if item.cold is None and item.deleted() != before:  # the count has moved while the bytes were read: compare the rest
        bytes_read = checked.bytes_read
        checked = verifier.check(item.place)
        return checked.problems, bytes_read
    return checked.problems, checked.bytes_read


def newer_problem(found: NewerFormatError) -> Problem:
    """What a scrub tells of a part of a newer version: nobody can read a data part, the others are done without."""
    return Problem(found.spot.path, found.spot.offset, found.what, newer=True)


def everything_below(data_dir: Path) -> Iterator[Item]:
    """List the segments and packs of a directory by their names, for a scrub without a manifest."""
    for path in names.files_below(data_dir):
        named = names.parse(path)
        if named and named[1] == "data":
            yield Item(names.place_of(named[0]))
        elif named and named[1] == "flags" and not named[0].path("data").exists():
            yield Item(names.place_of(named[0]), cold=named[0])
        elif names.pack_number(path) is not None:
            yield from (Item(place) for place in pack_places(path, load(path)[0])[0])
