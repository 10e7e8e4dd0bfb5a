"""Copies of a data directory that are made while the server runs, and directories made of them again (docs/format/backup.md)."""
