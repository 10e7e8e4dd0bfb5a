"""What reads of shared memory can end in, as errors of the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topicsd import errors
from topicsd._native.reader import Busy, Gone, IoError


@contextmanager
def reading(topic: str = "") -> Iterator[None]:
    """Translate what the native reader raises while it reads a topic."""
    try:
        yield
    except Gone:
        raise errors.TopicNotFound(topic) from None
    except Busy:
        # bounded retries met a change each time: most likely the writer died in the middle of one
        raise errors.NotReady("the topic is being changed: try again") from None
    except IoError as wrong:
        raise errors.Unread(wrong.seq) from None
