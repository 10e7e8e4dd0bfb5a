"""Put a damaged index, tag part or data header right, after a copy of what was there has been set aside. Nothing is ever deleted."""

from __future__ import annotations

import os
import re
from pathlib import Path

from topicsd.segments.names import Spot
from topicsd.segments.verify import Checked

_ASIDE = re.compile(r"(.+)-\d{20}(?:-\d+)?\.bin")


def sync_folder(folder: Path) -> None:
    """Sync a directory."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file under a temporary name, sync it, give it its name, sync the directory."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def set_aside(quarantine: Path, path: Path, offset: int, raw: bytes) -> Path:
    """Copy damaged bytes into the quarantine; what is there already stays. The copy's path."""
    quarantine.mkdir(exist_ok=True)
    number = 0
    while True:
        target = quarantine / f"{path.parent.name}-{path.name}-{offset:020d}{f'-{number}' if number else ''}.bin"
        try:
            with target.open("xb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            break
        except FileExistsError:
            if target.read_bytes() == raw:
                break
            number += 1
    sync_folder(quarantine)
    sync_folder(quarantine.parent)
    return target


def changed_files(quarantine: Path) -> set[tuple[str, str]]:
    """The folders and names of the files that something was set aside of."""
    found = (_ASIDE.fullmatch(path.name) for path in (quarantine.iterdir() if quarantine.is_dir() else ()))
    return {(folder, name) for each in found if each for folder, _dash, name in [each[1].rpartition("-")]}


def move_aside(quarantine: Path, path: Path) -> Path:
    """Move a file that nothing speaks of into the quarantine. Its new path."""
    quarantine.mkdir(exist_ok=True)
    number = 0
    while (target := quarantine / f"{path.parent.name}-{path.name}{f'-{number}' if number else ''}").exists():
        number += 1
    path.rename(target)
    sync_folder(quarantine)
    sync_folder(path.parent)
    return target


def repair(checked: Checked, quarantine: Path) -> list[str]:
    """Do what `Verifier.check(..., remake=True)` found possible. What was done, in words. Raises OSError.

    The part of a pack is written in place: it has the same length, or the rest of its place becomes zeroes.
    """
    done = []
    place, found = checked.place, checked.findings
    if found is not None and found.damaged_ranges:
        raw = place.data.path.read_bytes()[place.data.offset + found.damaged_offset : place.data.offset + found.data_bytes]
        copy = set_aside(quarantine, place.data.path, place.data.offset + found.damaged_offset, raw)
        done.append(f"{place.data.path}: damaged data copied to {copy}")
    for kind, raw in checked.remade.items():
        spot: Spot = getattr(place, kind)
        try:
            old = spot.path.read_bytes()
        except FileNotFoundError:
            write_whole(spot.path, raw)
            done.append(f"{spot.path}: made again")
            continue
        copy = set_aside(quarantine, spot.path, spot.offset, old[spot.offset :] if kind != "data" else old[spot.offset : spot.offset + 128])
        if kind != "data" and place.alone():
            write_whole(spot.path, raw)
        else:
            overwrite(spot, raw, end_of(checked, kind, len(old)))
        done.append(f"{spot.path}, byte {spot.offset}: made again; what was there is in {copy}")
    return done


def end_of(checked: Checked, kind: str, file_bytes: int) -> int:
    """Where the place of a pack's part ends: the next part begins, or (for tags) unknown: then nothing is padded."""
    place = checked.place
    if kind == "index" and place.tags.offset > place.index.offset:
        return place.tags.offset
    return 0


def overwrite(spot: Spot, raw: bytes, end: int) -> None:
    """Write a part in place and sync it. Raises ValueError when it does not fit."""
    if end and spot.offset + len(raw) > end:
        raise ValueError(f"{spot.path}, byte {spot.offset}: {len(raw)} bytes do not fit in front of byte {end}")
    fd = os.open(spot.path, os.O_WRONLY)
    try:
        os.pwrite(fd, raw, spot.offset)
        os.fdatasync(fd)
    finally:
        os.close(fd)
