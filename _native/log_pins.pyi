from topicsd._native.engine_core import EngineCore

def let_go(core: EngineCore, shard: int, below: int, first_slot: int) -> tuple[int, int, int, bool]:
    """Return (slot to go on at, notes forgotten, copies moved, ephemeral memory is full): some of what holds a shard's log below a position."""

def holder(core: EngineCore, shard: int) -> tuple[int, int] | None:
    """Return (slot, position) of the topic that points at the lowest place of a shard's log, as of its last row; None when none does."""
