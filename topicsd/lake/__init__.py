"""Sealed segments outside the server: scanning them as Arrow record batches, exporting them. The formats stand in docs/format/."""
