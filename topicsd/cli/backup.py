"""`topicsd backup` and `topicsd restore`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from topicsd.backup.restore import Until

EXIT_PROBLEMS, EXIT_FAILED = 1, 2


@click.command()
@click.argument("target")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), envvar="TOPICS_DATA_DIR", default=Path("data"))
@click.option("--cold", envvar="TOPICS_COLD_DIR", help="the server's cold tier [TOPICS_COLD_DIR]")
@click.option("--verify", is_flag=True, help="read every object of the newest backup in TARGET instead, and compare it with its name")
@click.option("--take-over", is_flag=True, help="go on in a TARGET that holds another directory's backups, which is refused from then on")
def backup(target: str, data_dir: Path, cold: str | None, verify: bool, take_over: bool) -> None:
    """Copy a data directory, in use or not, to TARGET: a folder, or s3://bucket/prefix. What is there already is not copied again."""
    from topicsd._native.segment import SegmentError
    from topicsd.backup import manifest
    from topicsd.backup.make import Backup
    from topicsd.backup.make import verify as verified
    from topicsd.backup.shelf import BackupError, open_shelf
    from topicsd.segments.cold import ColdError
    from topicsd.segments.cold_tier import open_tier

    try:
        shelf = open_shelf(target)
        if verify:
            numbers = manifest.numbers(shelf)
            if not numbers:
                raise BackupError(f"{target}: there is no backup")
            made = manifest.read(shelf, numbers[-1])
            wrong = verified(shelf, made)
            for line in wrong:
                click.echo(f"damage: {line}")
            click.echo(f"backup {made.number}: {len(made.files)} files, {len(wrong)} problems")
            sys.exit(EXIT_PROBLEMS if wrong else 0)
        if not data_dir.is_dir():
            raise BackupError(f"{data_dir}: there is no such data directory")
        report = Backup(data_dir, shelf, cold=open_tier(cold, data_dir) if cold else None, take_over=take_over).run()
    except (BackupError, ColdError, SegmentError, OSError) as failed:
        click.echo(f"topicsd: {failed}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo(f"backup {report.number}: {report.files} files, {report.bytes} bytes, {report.new_objects} new objects of {report.new_bytes} bytes")
    if report.notes:
        click.echo(f"{report.notes} places in the source, or in its cold tier, are damaged: see the manifest's `notes`, and topicsd fsck")


@click.command()
@click.argument("source")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--until", help="leave out what came later: a time (2026-11-28T12:00:00Z, or epoch ms), or log positions (SHARD:POSITION, …)")
@click.option("--number", type=int, help="which backup [the newest that serves]")
def restore(source: str, directory: Path, until: str | None, number: int | None) -> None:
    """Make a data DIRECTORY, which must not be there yet, of the backup in SOURCE. Killed in the middle: run it again."""
    from topicsd._native.segment import SegmentError
    from topicsd.backup.restore import Restore
    from topicsd.backup.shelf import BackupError, open_shelf
    from topicsd.segments import fsck

    try:
        report = Restore(open_shelf(source), directory, parse_until(until), number).run()
        checked = fsck.fsck(directory)
    except (BackupError, SegmentError, OSError, ValueError) as failed:
        click.echo(f"topicsd: {failed}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo(f"backup {report.number}: {report.files} files, {report.bytes} bytes; {report.kept} were there from a run that did not end")
    if until:
        click.echo(f"begun from snapshot {report.snapshot}; {report.dropped_frames} frames of the log were left out")
    if report.short_of:
        click.echo(f"the backup was made at {report.short_of} ms: what came between that and the time you gave is not in it")
    for shard, end in report.ends.items():
        click.echo(f"the backup ends at {shard}:{end}: what came between that and the position you gave is not in it")
    for line in checked.refused:
        click.echo(f"refused: {line}")
    for problem in checked.problems:
        click.echo(f"{'LOSS' if problem.loses else 'damage'}: {problem}")
    sys.exit(EXIT_FAILED if checked.refused else EXIT_PROBLEMS if checked.problems else 0)


def parse_until(text: str | None) -> Until:
    """Read what --until takes. Raises ValueError."""
    from topicsd.backup.restore import Until

    if not text:
        return Until()
    if text.isdigit():
        return Until(int(text))
    parts = [part.split(":") for part in text.split(",")]
    if all(len(part) == 2 and part[0].strip().isdigit() and part[1].strip().isdigit() for part in parts):
        return Until(None, {int(shard): int(position) for shard, position in parts})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--until {text}: neither a time nor SHARD:POSITION") from None
    return Until(int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
