"""The engine: every rule of the specification, without a socket (ARCHITECTURE section 1)."""

from topicsd.engine.engine import Engine, Options

__all__ = ["Engine", "Options"]
