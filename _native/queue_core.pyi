from topicsd._native.sequencer import Sequencer

class QueueCore(Sequencer):
    """The sequencer's queues; Python reaches them through QueueDoor."""
