"""Directories and backups of each format version open for ever, and hold what they held (tests/golden)."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd.backup import manifest
from topicsd.backup.make import verify
from topicsd.backup.restore import Restore
from topicsd.backup.shelf import FolderShelf
from topicsd.segments.fsck import fsck

GOLDEN = Path(__file__).parents[1] / "golden"
BOOT = b"golden directory"
VERSIONS = sorted(path.name for path in GOLDEN.glob("data-v*"))


def seen(library: Library) -> Any:
    spec = importlib.util.spec_from_file_location("make_data", GOLDEN / "make_data.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return json.loads(json.dumps(maker.seen(library)))


def check(directory: Path, version: str) -> None:
    wanted = json.loads((GOLDEN / version / "expected.json").read_text())
    clock = FakeClock(1_750_000_000_000 + 1_000, 5)
    for _ in range(2):
        library = Library(str(directory), clock, file_bytes=8192, boot=BOOT)
        assert library.store.degraded == []
        assert seen(library) == wanted
        library.store.close()
    library = Library(str(directory), clock, file_bytes=8192, boot=BOOT)
    again = library.append("plain", [{"data": 1}], key="plain-3")
    assert (again["deduped"], again["first_seq"]) == (True, 7), "a key within its window is known"
    library.checkpoint()
    library.store.close()


def test_there_is_one_of_each_version() -> None:
    assert VERSIONS == ["data-v1", "data-v2", "data-v3"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_directory_of_an_old_version_opens_and_holds_what_it_held(tmp_path: Path, version: str) -> None:
    shutil.copytree(GOLDEN / version / "data", tmp_path / "data")
    assert fsck(tmp_path / "data").problems == []
    check(tmp_path / "data", version)


def test_a_backup_of_version_1_restores_to_what_its_source_was(tmp_path: Path) -> None:
    shelf = FolderShelf(GOLDEN / "backup-v1" / "shelf")
    assert verify(shelf, manifest.read(shelf, 1)) == []
    Restore(shelf, tmp_path / "data").run()
    check(tmp_path / "data", "data-v1")
