"""Sealed segments as files: names, verification, repair, scrub, rewriting, the cold tier. The formats stand in docs/format/."""
