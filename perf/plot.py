"""Draw the ratios to the targets: bench.png with matplotlib where it is installed, else bench.svg by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

COLOURS = {"ok": "#3a7d44", "below": "#d9a400", "NOT DONE": "#b3261e"}


def bars(document: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Return (label, how many times the target is reached, verdict) for each target."""
    rows, heading = [], ""
    for row in document["targets"]:
        heading = row["what"] if not row["what"].startswith(" ") else heading
        sign, reach = row["reach"].split()[:2]
        share = float(reach) / row["got"] if sign == "<=" else row["got"] / float(reach)
        label = heading if row["what"] == heading else f"{heading.split(',')[0]}:{row['what'].strip().join('  ')}"
        rows.append((f"{label.strip()}  ({row['reach']})", share, row["verdict"]))
    return rows


def draw(document: dict[str, Any], directory: Path) -> Path:
    """Write the picture; return its path."""
    rows = bars(document)
    try:
        import matplotlib
    except ImportError:
        return _svg(rows, directory / "bench.svg")
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(11, 0.36 * len(rows) + 1.2))
    axes.barh([row[0] for row in rows], [row[1] for row in rows], color=[COLOURS[row[2]] for row in rows])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.axvline(1.0, color="black", linewidth=1)
    axes.axvline(0.6, color="grey", linewidth=0.8, linestyle=":")
    axes.invert_yaxis()
    axes.set_xlabel("times the target (1: reached)")
    for place, row in enumerate(rows):
        axes.text(row[1], place, f" {row[1]:.2f}", va="center", fontsize=8)
    axes.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(directory / "bench.png", dpi=110)
    return directory / "bench.png"


def _svg(rows: list[tuple[str, float, str]], path: Path) -> Path:
    scale = [math.log10(max(row[1], 0.01)) for row in rows]
    low, high = min(-0.5, *scale), max(0.5, *scale)

    def x(value: float) -> float:
        return 460 + (value - low) / (high - low) * 380

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="920" height="{24 * len(rows) + 40}" font-family="sans-serif" font-size="12">']
    for place, (row, value) in enumerate(zip(rows, scale, strict=True)):
        y = 12 + 24 * place
        parts.append(f'<text x="450" y="{y + 13}" text-anchor="end">{escape(row[0])}</text>')
        parts.append(f'<rect x="{x(low):.0f}" y="{y}" width="{x(value) - x(low):.0f}" height="18" fill="{COLOURS[row[2]]}"/>')
        parts.append(f'<text x="{x(value) + 4:.0f}" y="{y + 13}">{row[1]:.2f}</text>')
    parts.append(f'<line x1="{x(0):.0f}" x2="{x(0):.0f}" y1="4" y2="{24 * len(rows) + 12}" stroke="black"/></svg>')
    path.write_text("\n".join(parts))
    return path
