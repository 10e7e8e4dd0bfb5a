"""`topicsd export`."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from topicsd import limits

EXIT_FAILED = 2


def _sealed(url: str, token: str | None, names: list[str], at_once: int) -> list[str]:
    """Have topics sealed; those that are not, or not all of them. Raises ServerError."""
    from topicsd.lake.server import Server

    def some(mine: list[str]) -> list[str]:
        with Server(url, token) as server:
            return [name for name in mine if not server.seal(name)]

    shares = [names[at::at_once] for at in range(min(at_once, len(names)))]
    with ThreadPoolExecutor(at_once) as pool:
        return [name for left in pool.map(some, shares) for name in left]


@click.command()
@click.option("--to", "target", required=True, help="directory of the export, which is made, or s3://bucket/prefix")
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True, file_okay=False), envvar="TOPICS_DATA_DIR", default=Path("data"))
@click.option("--topics", help="names, or prefixes with * at their end, with commas between them [all]")
@click.option("--since", help="leave out the seqs that this manifest has: its path or URL")
@click.option("--seal", is_flag=True, help="have the server seal the topics first")
@click.option("--url", envvar="TOPICS_URL", default="http://127.0.0.1:4000", show_default=True, help="the server, for --seal [TOPICS_URL]")
@click.option("--token", envvar="TOPICS_TOKEN", help="for --seal; it needs the scope admin [TOPICS_TOKEN]")
@click.option("--prune", is_flag=True, help="leave out what the source no longer has, and remove files that no kept manifest needs")
@click.option("--verify", is_flag=True, help="read what the export has already, and copy again what is damaged")
@click.option("--follow", is_flag=True, help="go on until SIGTERM or Ctrl-C")
@click.option("--interval-ms", type=click.IntRange(min=1), default=10_000, show_default=True, help="time between two runs of --follow")
def export(
    target: str,
    data_dir: Path,
    topics: str | None,
    since: str | None,
    seal: bool,
    url: str,
    token: str | None,
    prune: bool,
    verify: bool,
    follow: bool,
    interval_ms: int,
) -> None:
    """Copy the sealed segments of a data directory, in use or not, and write a manifest. One line of JSON a run. Exit 2: nothing was committed."""
    import orjson

    from topicsd._native.segment import SegmentError
    from topicsd.lake import manifest
    from topicsd.lake.export import Exporter
    from topicsd.lake.scan import matches, wanted_topics
    from topicsd.lake.server import Server, ServerError
    from topicsd.lake.sources import DirectorySource
    from topicsd.lake.storage import VerifyError, open_storage
    from topicsd.snapshot import NewerSnapshotError

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT) if follow else ():
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        wanted = wanted_topics(topics, "--topics")
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from wrong
    failures = OSError, SegmentError, VerifyError, ServerError, NewerSnapshotError, manifest.ManifestError
    before = False  # a run has worked: the options are right, so what fails later may pass
    while True:
        try:
            try:
                base = None if since is None else manifest.load(since)
            except (OSError, manifest.ManifestError) as wrong:
                raise manifest.ManifestError(f"--since {since}: {wrong}") from wrong
            storage = open_storage(target)
            if seal:
                with Server(url, token) as server:
                    left = [name for name in server.topics() if matches(name, wanted)]
                for at_once in limits.SEALS_AT_ONCE:
                    left = _sealed(url, token, left, at_once)
            report = Exporter(DirectorySource(data_dir), storage, topics=wanted, since=base, prune=prune, quiet=follow, verify=verify).run()
            click.echo(orjson.dumps(report.line()))
            before = True
        except failures as wrong:
            click.echo(f"topicsd: {wrong}", err=True)
            if not before:
                sys.exit(EXIT_FAILED)
        if not follow or stop.wait(interval_ms / 1000):
            return
