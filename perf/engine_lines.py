"""The engine's own lines, without HTTP: run the other benches of this folder, read what they print, and hold it against the prototype's figures.

The prototype's figures (ARCHITECTURE, marked ◆) are of a machine like this one on a quiet day; a ratio of 0.6 is what must be reached. Where a bench
measures a physical limit beside it, that is shown too: on a busy day only the share of the limit says something.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import append_engine

from build import OUT, PERF

Row = dict[str, Any]


def run(script: str, *arguments: str) -> str:
    """Run a bench of this folder; return what it prints."""
    done = subprocess.run([sys.executable, str(PERF / script), *arguments], capture_output=True, text=True, timeout=900)
    if done.returncode:
        print(f"{script} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
    return done.stdout


def number(text: str, pattern: str) -> float | None:
    """Return the first group of a pattern as a number."""
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1].replace(",", "")) if found else None


def row(what: str, unit: str, got: float | None, prototype: float | None, limit: float | None, limit_is: str, at_most: bool = False) -> Row:
    """Make a row; `at_most`: less is better."""
    ratio = None
    if got is not None and prototype:
        ratio = prototype / max(got, prototype / 1000) if at_most else got / prototype
    return {"what": what, "unit": unit, "got": got, "prototype": prototype, "ratio": ratio, "limit": limit, "limit_is": limit_is}


def measure(quick: bool) -> list[Row]:
    """Run all; one row a figure."""
    rows = [*_ring(quick), *_scan(), *_diff(), *_append(quick), *_log(quick)]
    return [*rows, *_recovery(quick), *_memory(quick)]


def _ring(quick: bool) -> list[Row]:
    text = run("ring.py", "--rounds", "4000" if quick else "20000")
    awake, asleep, bare = (number(text, rf"^{name}\s+p50\s+([\d.]+)") for name in ("ring, awake", "ring, asleep", "bare, asleep"))
    return [
        row("ring round trip, both awake, p50", "us", awake, 5.0, None, "", at_most=True),
        row("ring round trip, both asleep, p50", "us", asleep, None, bare, "futex + eventfd alone", at_most=True),
    ]


def _scan() -> list[Row]:
    text = run("scan.py")
    one = number(text, r"^1 record of 64 B\s+\d+\s+([\d.]+)")
    many = re.search(r"^1000 records of 300 B\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+([\d.]+)", text, re.MULTILINE)
    return [
        row("scan, one-record body", "us", one, 0.29, None, "", at_most=True),
        row("scan, 1000 x 300 B", "GB/s", float(many[1]) if many else None, 1.1, float(many[2]) if many else None, "memcpy"),
    ]


def _diff() -> list[Row]:
    text = run("diff_render.py", "--rounds", "300")
    log, copy = number(text, r"^diff, log\s+([\d.]+)"), number(text, r"^memcpy\s+([\d.]+)")
    return [row("diff, 1000 x 300 B, from the log", "us", log, 24.0, copy, "memcpy of the answer", at_most=True)]


def _append(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        cases = append_engine.run(Path(folder), 0.5 if quick else 2.0)
    return [
        row(f"append {case['case']}", "records/s", case["records_s"], case["prototype_records_s"] or None, case["pwrite_records_s"], "pwrite")
        for case in cases
    ]


def _log(quick: bool) -> list[Row]:
    text = run("append_log.py", "--seconds", "0.5" if quick else "3", "--directory", str(OUT))
    pattern = r"^{}\s+[\d,]+ groups/s\s+([\d,]+)"
    return [
        row(
            "log, synced groups of 64, one in flight",
            "frames/s",
            number(text, pattern.format("shard")),
            None,
            number(text, pattern.format("bare")),
            "pwrite + fdatasync",
        )
    ]


def _recovery(quick: bool) -> list[Row]:
    text = run("restart.py", "--mib", "128" if quick else "1024", "--directory", str(OUT))
    rows = []
    for batch in (1, 100, 1000):
        found = re.search(rf"^batches of {batch} x 300 B\s+[\d.]+\s+[\d,]+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)", text, re.MULTILINE)
        walk, whole = (float(found[1]), float(found[2])) if found else (None, None)
        rows.append(row(f"recovery, batches of {batch} x 300 B", "GB/s", whole, 1.0, walk, "the walk alone"))
    return rows


def _memory(quick: bool) -> list[Row]:
    sizes = ("--records", "500000", "--sealed", "1000000", "--topics", "10000") if quick else ()
    text = run("memory.py", *sizes, "--directory", str(OUT))
    idle = number(text, r"^idle topics\s+([\d.]+)")
    return [
        row("memory of a tail record", "B", number(text, r"^tail records\s+([\d.]+)"), 24.0, None, "", at_most=True),
        # A segment of 262,144 records has a row of 64 B and a file of 64 B: half a millibyte a record. The rest is how much larger the tail once was.
        row(
            "memory of a sealed record",
            "B",
            number(text, r"^sealed records\s+(-?[\d.]+)"),
            0.5,
            None,
            "0: only its segment's row stays",
            at_most=True,
        ),
        row("memory of 100 k idle topics", "MB", idle and idle * (10 if quick else 1), 100.0, None, "", at_most=True),
    ]


def table(rows: list[Row]) -> str:
    """Lay the rows out."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"

    lines = [f"{'engine, without HTTP':48}{'got':>14}  {'unit':12}{'prototype':>12}{'ratio':>7}{'limit':>14}"]
    for each in rows:
        verdict = "" if each["ratio"] is None else "ok" if each["ratio"] >= 1 else "ok (>= 0.6)" if each["ratio"] >= 0.6 else "BELOW 0.6"
        lines.append(
            f"{each['what']:48}{shown(each['got']):>14}  {each['unit']:12}{shown(each['prototype']):>12}{shown(each['ratio']):>7}"
            f"{shown(each['limit']):>14}"
            f"  {each['limit_is']:24}{verdict}"
        )
    return "\n".join(lines)
