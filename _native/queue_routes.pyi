# Nothing for Python: Front.serve calls it.
