"""A backup's manifest: one line of JSON, and a line with its checksum. It names all that a restore needs (docs/format/backup.md)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from topicsd.backup.shelf import BackupError, Shelf, TakenError, digest_of, manifest_name
from topicsd.versions import newer

FORMAT, VERSION = "topicsd-backup", 1


class NewerManifestError(BackupError):
    """Say that a newer version has written a manifest: never guess."""


@dataclass
class Entry:
    """One file of the data directory. `object_bytes` of it are in the object; the rest, up to `bytes`, are zeroes."""

    path: str
    bytes: int
    object: str
    object_bytes: int
    stamp: list[int] = field(default_factory=list)  # of the source: inode, bytes, mtime in ns. Equal: the object need not be made again


@dataclass
class Moment:
    """A snapshot that a restore may begin from."""

    number: int
    wall_ms: int
    moment: list[int]  # by shard: the log position from which replay goes on


@dataclass
class Manifest:
    """One backup."""

    number: int
    written_ms: int
    ends: list[int]  # by shard: the log position up to which it goes
    snapshots: list[Moment]
    files: list[Entry]
    notes: list[str] = field(default_factory=list)  # damage that was in the source
    directory: str = ""  # whose it is (owner.py); "" from before there were ids

    def dump(self) -> bytes:
        """Encode it."""
        members = {name: value for name, value in asdict(self).items() if name != "directory" or value}
        line = json.dumps({"format": FORMAT, "format_version": VERSION, **members}, separators=(",", ":")).encode()
        return line + b'\n{"blake2b":"' + digest_of(line).encode() + b'"}\n'


def parse(raw: bytes, name: str) -> Manifest:
    """Decode and verify a manifest. Raises NewerManifestError, BackupError."""
    line, _, rest = raw.partition(b"\n")
    try:
        if json.loads(rest)["blake2b"] != digest_of(line):
            raise BackupError(f"{name}: its checksum differs")
        found: dict[str, Any] = json.loads(line)
    except (ValueError, KeyError, TypeError) as wrong:
        raise BackupError(f"{name}: not whole") from wrong
    if found.get("format") != FORMAT:
        raise BackupError(f"{name}: no manifest of a backup")
    if found["format_version"] > VERSION:
        raise NewerManifestError(f"{name}: {newer(found['format_version'], VERSION)}")
    return Manifest(
        found["number"], found["written_ms"], found["ends"], [Moment(**each) for each in found["snapshots"]],
        [Entry(**each) for each in found["files"]], found["notes"], found.get("directory", ""),
    )  # fmt: skip


def numbers(shelf: Shelf) -> list[int]:
    """Return the numbers of all manifests, ascending."""
    return [int(name[:20]) for name in shelf.names("manifests") if len(name) == 25 and name[:20].isdigit() and name.endswith(".json")]


def read(shelf: Shelf, number: int) -> Manifest:
    """Read a manifest. Raises NewerManifestError, BackupError."""
    return parse(shelf.read(manifest_name(number)), manifest_name(number))


def write(shelf: Shelf, made: Manifest) -> None:
    """Write a manifest under the next free number: from then on the backup is there."""
    while True:
        made.number = max(numbers(shelf), default=0) + 1
        try:
            shelf.put(manifest_name(made.number), made.dump())
            return
        except TakenError:
            continue
