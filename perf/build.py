"""Build what the benches need into perf/out/: the load generator and the bare servers (C), and the native submit loop (Cython).

Nothing is installed. A file is built again only when something beside it is newer.
"""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

PERF = Path(__file__).resolve().parent
OUT = PERF / "out"
ROOT = PERF.parent
WARNINGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra"]
COMPILER = shlex.split(os.environ.get("CC", "cc"))
PROGRAMS = {
    "load": PERF / "load/load.c",
    "jobs": PERF / "load/jobs.c",
    "fan": PERF / "load/fan.c",
    "room": PERF / "load/room.c",
    "bare_http": PERF / "bare/http.c",
    "bare_disk": PERF / "bare/disk.c",
    "bare_fan": PERF / "bare/fan.c",
}


def build(engine: bool = True) -> None:
    """Build all that is stale, `engine`: the submit loop too. Raises CalledProcessError when a compiler refuses."""
    OUT.mkdir(exist_ok=True)
    for name, source in PROGRAMS.items():
        if _stale(OUT / name, [*source.parent.glob("*.[ch]"), PERF / "load/histogram.h"]):
            subprocess.run([*COMPILER, *WARNINGS, "-o", OUT / name, source], check=True)
    if engine:
        _build_submit()
        importlib.invalidate_caches()  # the folder may not have been there when Python looked into it first


def _stale(product: Path, sources: list[Path]) -> bool:
    return not product.exists() or any(source.stat().st_mtime > product.stat().st_mtime for source in sources)


def _build_submit() -> None:
    # It sees the structs of _native/, so it is as old as the oldest of their pages.
    source = PERF / "engine/submit.pyx"
    product = OUT / f"submit{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not _stale(product, [source, *(ROOT / "_native").glob("*.pxd"), *(ROOT / "_native").glob("*.h")]):
        return
    subprocess.run([sys.executable, "setup.py", "-q", "view"], cwd=ROOT, check=True, env=os.environ | {"TOPICSD_ONLY": "none"})
    generated = OUT / "submit.c"
    view = ROOT / "build/view"
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", "-X", "boundscheck=False,wraparound=False,cdivision=True", "-I", view, "-o", generated, source],
        check=True,
    )
    flags = ["-std=gnu11", "-O3", "-g", "-fno-strict-aliasing", "-shared", "-fPIC", "-w"]
    include = ["-I", sysconfig.get_path("include"), "-I", str(ROOT / "_native")]
    subprocess.run([*COMPILER, *flags, *include, "-o", product, generated], check=True)


if __name__ == "__main__":
    build()
