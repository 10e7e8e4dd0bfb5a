"""topicsd: durable topics over HTTP, one writer behind shared-memory rings."""

__version__ = "0.1.0"
