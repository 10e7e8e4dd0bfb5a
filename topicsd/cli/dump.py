"""`topicsd dump FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def dump(file: Path) -> None:
    """Print any FILE of a data directory as JSON lines: log, .data, .idx, .tag, .del, .pack, snapshot."""
    from topicsd._native.segment import SegmentError
    from topicsd.segments.dump import dump as lines

    out = sys.stdout.buffer
    try:
        for line in lines(file):
            out.write(line + b"\n")
        out.flush()
    except BrokenPipeError:
        sys.stderr.close()  # `| head`: Python would complain once more when it ends
        sys.exit(0)
    except (ValueError, OSError, SegmentError) as wrong:
        click.echo(f"topicsd: {wrong}", err=True)
        sys.exit(1)
