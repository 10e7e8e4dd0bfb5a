"""Nothing for Python: sealed.pyx uses it."""
