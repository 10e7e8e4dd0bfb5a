"""The work state of one queue: C functions only (see jobs.pxd); the engine reaches it through `topicsd._native.queue_core`."""
