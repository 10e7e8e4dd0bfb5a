# The engine's door to sealed ranges: what topicsd/engine/segments.py decides, done on the writer's tables.
#
# One thread, the writer's. The words: sealed.pxd, sealed_topic.pxd.
