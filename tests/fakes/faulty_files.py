"""A disk that can fail: the shipped file functions with faults in between, and what a power cut could leave of their work.

The model of a power cut: everything that a sync had covered before it began is there. Of what was not synced, each 512-byte sector is there,
is not, or is torn (its front is new, its end is old), each for itself; each directory entry that was made, renamed or removed since the last
sync of its directory is so or is not; a size that grew has grown or has not.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from topicsd._native.files import WatchedFiles

SECTOR_BYTES = 512


@dataclass
class Fault:
    """The `nth` call of `kind` from now on fails with `error`; a pwritev may first write `short` bytes. `path` narrows it down."""

    kind: str
    nth: int = 1
    error: int = errno.EIO
    short: int = 0
    path: bytes = b""
    forever: bool = False


@dataclass
class Inode:
    """What a file holds for certain, and the writes that no sync has covered."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, int, bytes | int]] = field(default_factory=list)  # (call, offset, bytes), or (call, new size, 0)

    def settle(self, upto: int) -> None:
        for call, offset, data in self.pending:
            if call < upto:
                self.put(offset, data)
        self.pending = [entry for entry in self.pending if entry[0] >= upto]

    def put(self, offset: int, data: bytes | int) -> None:
        if isinstance(data, int):
            self.content.extend(bytes(max(0, offset - len(self.content))))
            return
        self.content.extend(bytes(max(0, offset + len(data) - len(self.content))))
        self.content[offset : offset + len(data)] = data


class FaultyFiles(WatchedFiles):
    """Files on a real directory that fail on demand and remember every call.

    `calls` are the calls that changed something, in order: (kind, ...). `space` is how many bytes all files together may hold.
    """

    images = 0  # that all disks of this process have made

    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)
        self.calls: list[tuple] = []
        self.faults: list[Fault] = []
        self.space: int | None = None
        self.paths: dict[bytes, int] = {}  # path -> inode number
        self.descriptors: dict[int, tuple[int, bytes]] = {}  # fd -> inode number, path at open
        self.sizes: dict[int, int] = {}
        self.inodes = 0
        self.sync_began: dict[tuple[str, int], int] = {}

    # ---- faults

    def fail(self, kind: str, nth: int = 1, error: int = errno.EIO, short: int = 0, path: bytes = b"", forever: bool = False) -> None:
        """Make the `nth` call of `kind` from now on (and all later ones with `forever`) fail."""
        self.faults.append(Fault(kind, nth, error, short, path, forever))

    def heal(self) -> None:
        """Forget all faults and the limit of space."""
        self.faults.clear()
        self.space = None

    def used(self) -> int:
        return sum(self.sizes[inode] for inode in set(self.paths.values()))

    def before(self, kind: str, *args) -> int:
        path = self.path_of(kind, args)
        for fault in self.faults:
            if fault.kind != kind or fault.path not in path:
                continue
            fault.nth -= 1
            if fault.nth < 0 and not fault.forever:
                continue
            if fault.nth <= 0:
                return fault.short or -fault.error
        if self.space is not None and kind in ("fallocate", "pwritev"):
            fd, offset, what = args
            end = offset + (what if kind == "fallocate" else len(what))
            if self.used() + max(0, end - self.sizes[self.descriptors[fd][0]]) > self.space:
                return -errno.ENOSPC
        if kind in ("fdatasync", "fsync"):
            self.sync_began[kind, args[0]] = len(self.calls)
        return 0

    def path_of(self, kind: str, args: tuple) -> bytes:
        if isinstance(args[0], bytes):
            return args[0]
        return self.descriptors.get(args[0], (0, b""))[1]

    # ---- memory

    def after(self, kind: str, result: int, *args) -> None:
        if result < 0 or kind == "pread":
            return
        if kind == "open":
            self.opened(result, *args)
        elif kind == "close":
            del self.descriptors[args[0]]
        elif kind == "pwritev":
            inode = self.descriptors[args[0]][0]
            self.sizes[inode] = max(self.sizes[inode], args[1] + len(args[2]))
            self.calls.append((kind, inode, args[1], args[2]))
        elif kind == "fallocate":
            inode = self.descriptors[args[0]][0]
            self.sizes[inode] = max(self.sizes[inode], args[1] + args[2])
            self.calls.append((kind, inode, self.sizes[inode]))
        elif kind in ("fdatasync", "fsync"):
            self.calls.append(("sync", self.descriptors[args[0]][0], self.sync_began[kind, args[0]]))
        elif kind == "rename":
            self.paths[args[1]] = self.paths.pop(args[0])
            self.calls.append((kind, args[0], args[1], self.paths[args[1]]))
        elif kind == "unlink":
            self.paths.pop(args[0], None)
            self.calls.append((kind, args[0]))
        else:
            self.calls.append((kind, args[0]))

    def opened(self, fd: int, path: bytes, flags: int, mode: int) -> None:
        if path not in self.paths or flags & os.O_TRUNC:
            self.inodes += 1
            inode = self.inodes
            size = os.fstat(fd).st_size
            self.sizes[inode] = size
            self.paths[path] = inode
            found = os.pread(fd, size, 0) if size and not flags & os.O_WRONLY else b""
            self.calls.append(("create" if flags & os.O_CREAT else "found", path, inode, found))
        self.descriptors[fd] = (self.paths[path], path)

    # ---- power cuts

    def image(self, call: int, seed: int, destination: Path) -> None:
        """Put under `destination` what the disk may hold when the power goes after the first `call` calls.

        Seed 0 loses everything that was not synced, seed 1 keeps everything, others draw for each sector and each entry.
        """
        FaultyFiles.images += 1
        rng = random.Random(seed * 1_000_003 + call)
        chance = {0: 0.0, 1: 1.0}.get(seed, rng.choice([0.1, 0.5, 0.9]))
        inodes, names, pending_names = self.replay(call)
        for operation in pending_names:
            if rng.random() < chance:
                apply_name(names, operation)
        for inode in inodes.values():
            keep_some(inode, rng, chance)
        for path, inode_number in sorted(names.items()):
            relative = os.fsdecode(os.path.relpath(path, self.root))
            target = destination / relative
            if inode_number is None:
                if target.parent.is_dir() or target == destination:
                    target.mkdir(exist_ok=True)
            elif target.parent.is_dir():
                target.write_bytes(inodes[inode_number].content)

    def replay(self, count: int) -> tuple[dict[int, Inode], dict[bytes, int | None], list[tuple]]:
        """Return what is certain after `count` calls: files, names (None for a directory), and the name changes that are not certain."""
        inodes: dict[int, Inode] = {}
        names: dict[bytes, int | None] = {}
        pending: list[tuple] = []
        for index, (kind, *args) in enumerate(self.calls[:count]):
            if kind == "create":
                inodes[args[1]] = Inode()
                pending.append(("link", args[0], args[1]))
            elif kind == "found":
                inodes[args[1]] = Inode(bytearray(args[2]))
                names[args[0]] = args[1]
            elif kind == "pwritev":
                inodes[args[0]].pending.append((index, args[1], args[2]))
            elif kind == "fallocate":
                inodes[args[0]].pending.append((index, args[1], 0))
            elif kind == "sync":
                inodes[args[0]].settle(args[1])
            elif kind == "rename":
                pending.append(("rename", args[1], args[2], args[0]))
            elif kind == "unlink":
                pending.append(("unlink", args[0]))
            elif kind == "mkdir":
                pending.append(("link", args[0], None))
            elif kind == "sync_directory":
                for operation in [entry for entry in pending if entry[1].rpartition(b"/")[0] == args[0]]:
                    apply_name(names, operation)
                    pending.remove(operation)
        return inodes, names, pending


def apply_name(names: dict[bytes, int | None], operation: tuple) -> None:
    """Do one change of a directory."""
    if operation[0] == "unlink":
        names.pop(operation[1], None)
        return
    names[operation[1]] = operation[2]
    if operation[0] == "rename":
        names.pop(operation[3], None)


def keep_some(inode: Inode, rng: random.Random, chance: float) -> None:
    """Draw for each sector that no sync has covered whether it is there."""
    for _, offset, data in inode.pending:
        if isinstance(data, int) or not any(data):  # only the size changes: the place was never anything but zeroes
            if rng.random() < chance:
                inode.put(offset if isinstance(data, int) else offset + len(data), 0)
            continue
        start = offset
        while start < offset + len(data):
            end = min(offset + len(data), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            draw = rng.random()
            if draw < chance:
                inode.put(start, data[start - offset : end - offset])
            elif 0.0 < chance < 1.0 and draw < chance + 0.1:
                inode.put(start, data[start - offset : start - offset + rng.randrange(end - start)])
            start = end
    inode.pending.clear()
