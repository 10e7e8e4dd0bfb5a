# Nothing for Python: see segment_tags.pxd.
