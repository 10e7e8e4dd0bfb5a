"""topicsd: durable topics over HTTP, one writer behind shared-memory rings."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topicsd.lake.scan import scan

__version__ = "0.1.0"
__all__ = ["__version__", "scan"]


def __getattr__(name: str) -> Any:
    if name == "scan":  # it brings pyarrow and extensions, which no other part of the package wants
        from topicsd.lake.scan import scan

        return scan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
