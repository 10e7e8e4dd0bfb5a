"""Nothing for Python: sealed.pyx uses it, and topicsd._native.upkeep is its door."""
