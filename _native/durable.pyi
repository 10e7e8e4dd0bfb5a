# Nothing for Python: see durable.pxd.
