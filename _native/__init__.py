"""Bytes and memory order, imported as `topicsd._native`: each module has its page of truth in its .pxd and its Python face in its .pyi."""
