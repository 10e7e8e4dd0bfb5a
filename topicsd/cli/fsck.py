"""`topicsd fsck DIR`."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

EXIT_PROBLEMS, EXIT_REFUSED = 1, 2


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--repair", is_flag=True, help="make damaged indexes and tags again, move litter to quarantine/; nothing is deleted")
@click.option("--cold", envvar="TOPICS_COLD_DIR", help="the server's cold tier, whose objects are read too [TOPICS_COLD_DIR]")
def fsck(directory: Path, repair: bool, cold: str | None) -> None:
    """Check a data DIRECTORY that no server has open. Exit 0: all is well, 1: there are problems, 2: refused: in use, newer, or no cold tier."""
    from topicsd.segments import fsck as checker
    from topicsd.segments.cold import ColdError
    from topicsd.segments.cold_tier import open_tier, was_used

    unused = bool(cold) and not was_used(directory)
    try:
        if cold and not unused and len(urlsplit(cold).scheme) < 2 and not Path(cold).is_dir():
            raise NotADirectoryError(f"{cold}: there is no such cold tier")
        report = checker.fsck(directory, mend=repair, cold=open_tier(cold, directory) if cold and not unused else None)
    except (checker.InUseError, ColdError, OSError) as wrong:
        click.echo(f"topicsd: {wrong}", err=True)
        sys.exit(EXIT_REFUSED)
    for line in report.refused:
        click.echo(f"refused: {line}")
    for problem in report.problems:
        click.echo(f"{'LOSS' if problem.loses else 'damage'}: {problem}")
    for note in report.notes:
        click.echo(f"note: {note}")
    if unused:
        click.echo(f"note: nothing was ever moved to a cold tier: {cold} was not looked at")
    for line in report.done:
        click.echo(f"done: {line}")
    click.echo(f"{report.files} files, {report.bytes} bytes, {report.log_frames} log frames")
    click.echo(f"{report.segments} segments ({report.cold} cold) with {report.records} records, {report.deleted} flagged as deleted")
    if report.unread:
        click.echo(f"{report.unread} of them were not read: {'their index is damaged' if cold else 'say with --cold where the cold tier is'}")
    click.echo(f"{len(report.problems)} problems")
    sys.exit(EXIT_REFUSED if report.refused else EXIT_PROBLEMS if report.problems else 0)
