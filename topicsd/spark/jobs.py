"""The jobs as commands: `topicsd spark …`, and `spark-submit …/topicsd/spark/jobs.py …`. Exit 0: done; 1: an audit differs; 2: it could not run."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from topicsd.spark.lakes import Lake

EXIT_DIFFERS, EXIT_FAILED = 1, 2
EXTRAS = {"deltalake": "spark", "obstore": "s3", "pyarrow": "spark", "pyiceberg": "iceberg", "pyspark": "spark", "sqlalchemy": "iceberg"}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Topics and lake tables: ingest, compact, replay, audit. It needs the extra `spark`."""


def source(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a source."""
    for option in (
        click.option("--topics", help="names, or prefixes with * at their end, with commas between them [all]"),
        click.option("--token", envvar="TOPICS_TOKEN", help="a key of the server [TOPICS_TOKEN]"),
        click.option("--url", envvar="TOPICS_URL", help="a live server [TOPICS_URL]"),
        click.option("--path", help="an export: a folder or s3://bucket/prefix; it goes before --url"),
    ):
        command = option(command)
    return command


def table(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a lake table; the command gets a Lake."""

    @functools.wraps(command)
    def inner(*args: Any, table: Path, kind: str | None, catalog: str, **kwargs: Any) -> None:
        from topicsd.spark.lakes import Lake
        from topicsd.spark.tables import TableError

        try:
            lake = Lake(table, kind or "", catalog)
        except TableError as wrong:
            raise click.BadParameter(str(wrong), param_hint="--table") from wrong
        command(*args, lake=lake, **kwargs)

    out: Callable[..., None] = inner
    for option in (
        click.option("--catalog", default="", help="of Iceberg: an SQL URL, or a name that pyiceberg's configuration has [a file beside the table]"),
        click.option("--format", "kind", type=click.Choice(["delta", "iceberg"]), help="[what is there; delta, where nothing is]"),
        click.option("--table", required=True, type=click.Path(path_type=Path, file_okay=False), help="folder of the table"),
    ):
        out = option(out)
    return out


def there(lake: Lake) -> Lake:
    """A table that is there. Raises FileNotFoundError."""
    if not lake.path.is_dir():
        raise FileNotFoundError(f"{lake.path}: no table")
    return lake


def failing(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what can go wrong into one line and exit 2."""

    @functools.wraps(command)
    def inner(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except Exception as wrong:
            if os.environ.get("TOPICSD_TRACEBACK"):
                raise
            extra = EXTRAS.get((wrong.name or "").partition(".")[0]) if isinstance(wrong, ModuleNotFoundError) else None
            hint = f": it needs the extra `{extra}` (pip install 'topicsd[{extra}]')" if extra else ""
            click.echo(f"topicsd: {type(wrong).__name__}: {_reason(wrong)}{hint}", err=True)
            sys.exit(EXIT_FAILED)

    return inner


def _reason(wrong: BaseException) -> str:
    """Of a task's traceback the last line: what it raised."""
    lines = [line.strip() for line in str(wrong).splitlines() if line.strip()]
    raised = [line for line in lines if line.startswith("topicsd.") or "Error: " in line]
    return raised[-1] if raised else (lines[0] if lines else "")


def session(name: str, master: str | None) -> Any:
    """The session of a job. Workers run this Python, unless PYSPARK_PYTHON names another."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName(f"topicsd {name}").config("spark.ui.showConsoleProgress", "false")
    made = (builder.master(master) if master else builder).getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    import topicsd.spark

    topicsd.spark.register(made)
    return made


def options_of(path: str | None, url: str | None, token: str | None, topics: str | None, **more: Any) -> Any:
    """The source's options."""
    from topicsd.objects import is_url
    from topicsd.spark.options import OptionError, parse

    if path is None and url is None:
        raise OptionError("name an export (--path) or a server (--url, TOPICS_URL)")
    place = path if path is None or is_url(path) else str(Path(path).absolute())
    where: dict[str, Any] = {"path": place} if place is not None else {"url": url} | ({"token": token} if token else {})
    return parse({name: str(value) for name, value in (where | {"topics": topics} | more).items() if value is not None})


def tell(report: dict[str, Any], *, err: bool = False) -> None:
    """One line of JSON."""
    click.echo(json.dumps(report), err=err)


@spark.command()
@source
@table
@click.option("--checkpoint", type=click.Path(path_type=Path, file_okay=False), help="folder for the job's id and place; it may be lost")
@click.option("--json-schema", default="raw", help="a file of names and types for a column payload, `infer`, or `raw`: none [raw]")
@click.option("--max-records-per-trigger", type=click.IntRange(min=1), help="of one commit")
@click.option("--max-partition-bytes", type=click.IntRange(min=1), help="of one task [134217728]")
@click.option("--available-now", is_flag=True, help="stop when there is nothing more")
@click.option("--interval-ms", type=click.IntRange(min=1), default=5000, show_default=True, help="between two looks at a source that has nothing new")
@click.option("--allow-data-loss", is_flag=True, help="what has gone from the source is a gap in the quarantine; else the job fails")
@click.option("--on-corrupt", type=click.Choice(["fail", "row"]), default="row", show_default=True, help="row: damage goes into the quarantine")
@click.option("--master", help="of Spark [spark-submit's, local[*]]")
@click.option("--local", is_flag=True, help="without Spark and Java: tasks run in this process, one after another")
@failing
def ingest(
    path: str | None, url: str | None, token: str | None, topics: str | None, lake: Lake, checkpoint: Path | None,
    json_schema: str, max_records_per_trigger: int | None, max_partition_bytes: int | None, available_now: bool, interval_ms: int,
    allow_data_loss: bool, on_corrupt: str, master: str | None, local: bool,
) -> None:  # fmt: skip
    """Bring topics into a lake table, each record once."""
    from topicsd.spark import ingest as job
    from topicsd.spark import payloads

    stop = threading.Event()
    options = options_of(path, url, token, topics, failOnDataLoss=not allow_data_loss, onCorrupt=on_corrupt, maxPartitionBytes=max_partition_bytes)
    schema: Any = json_schema if json_schema in ("raw", "infer") else payloads.load(Path(json_schema))
    runner: job.Runner = job.run_here
    cores = 1
    if not local:
        from topicsd.spark.runner import run_tasks

        running = session("ingest", master)
        runner, cores = functools.partial(run_tasks, running), running.sparkContext.defaultParallelism
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    made = job.Ingest(runner, options, lake, cores=cores, schema=schema, limit=max_records_per_trigger, checkpoint=checkpoint)
    show = _bar if sys.stderr.isatty() else (lambda report: tell(report, err=True))
    tell(job.run(made, once=available_now, interval_s=interval_ms / 1000, stop=stop.is_set, tell=show))


def _bar(report: dict[str, Any]) -> None:
    rate = report["records"] / max(report["ms"], 1) * 1000
    click.echo(
        f"\r\033[Kbatch {report['batch']}: {report['records']} records, {report['bytes'] / 1e6:.1f} MB, {rate:.0f} records/s", err=True, nl=False
    )


@spark.command()
@source
@table
@failing
def audit(path: str | None, url: str | None, token: str | None, topics: str | None, lake: Lake) -> None:
    """Compare a lake table with an export, a server or both, by topic and day; a line for each, the verdict last. Exit 1: something differs."""
    from topicsd.spark.audit import Audit

    there(lake)
    sources = [("path", path, None)] * (path is not None) + [("url", None, url)] * (url is not None)
    if not sources:
        options_of(None, None, None, None)
    days = differing = records = 0
    gaps: list[dict[str, Any]] = []
    repairs: dict[str, None] = {}
    for name, one_path, one_url in sources:
        server = None if one_path is None or url is None else options_of(None, url, token, topics)
        made = Audit(lake, options_of(one_path, one_url, token, topics), server)
        gaps = made.gaps()
        for day in made.days():
            days, differing, records = days + 1, differing + (not day.clean), records + day.source
            tell({"against": name} | day.line())
            repairs |= dict.fromkeys([_repair(lake, name, one_path or one_url or "", topics)] if day.repairable else [])
    for gap in gaps:
        tell({"gap": gap})
    for command in repairs:
        tell({"repair": command})
    tell({"clean": differing == 0, "days": days, "differing": differing, "records": records, "gaps": len(gaps)})
    if differing:
        sys.exit(EXIT_DIFFERS)


def _repair(lake: Lake, source: str, place: str, topics: str | None) -> str:
    """What brings to a table the records that it names as lost, and that a source has."""
    more = (("--catalog", lake.catalog), ("--topics", topics))
    told = [part for name, value in more if value for part in (name, value)]
    return shlex.join(["topicsd", "spark", "ingest", f"--{source}", place, "--table", str(lake.path), *told, "--available-now"])


@spark.command()
@table
@click.option("--target-bytes", type=click.IntRange(min=1), default=128 << 20, show_default=True, help="of a file")
@click.option("--vacuum-hours", type=click.IntRange(min=0), help="then remove files that no version of so many hours needs, and litter")
@failing
def compact(lake: Lake, target_bytes: int, vacuum_hours: int | None) -> None:
    """Join small files. A run that is killed has done nothing; the next one does it."""
    made = there(lake).table()
    done = made.compact(target_bytes)
    report = {"files_removed": done["numFilesRemoved"], "files_added": done["numFilesAdded"]}
    tell(report | ({"files_vacuumed": made.vacuum(vacuum_hours)} if vacuum_hours is not None else {}))


@spark.command()
@table
@click.option("--url", required=True, envvar="TOPICS_URL", help="the server [TOPICS_URL]")
@click.option("--token", envvar="TOPICS_TOKEN", help="a key of the server [TOPICS_TOKEN]")
@click.option("--topics", help="of the table: names, or prefixes with * at their end, with commas between them [all]")
@click.option("--since", type=int, help="epoch ms, inclusive")
@click.option("--until", type=int, help="epoch ms, exclusive")
@click.option("--to", required=True, help="a topic, or a prefix with * at its end, which the names are put behind")
@click.option("--write-id", help="of a replay that is to be repeated [made of the table's state and of these options]")
@click.option("--master", help="of Spark [spark-submit's, local[*]]")
@failing
def replay(
    lake: Lake, url: str, token: str | None, topics: str | None, since: int | None, until: int | None, to: str,
    write_id: str | None, master: str | None,
) -> None:  # fmt: skip
    """Write a table's records to topics again. The same replay, repeated, writes nothing twice and goes on where it stopped."""
    from topicsd.lake.scan import wanted_topics
    from topicsd.spark import replay as job

    there(lake)
    names = wanted_topics(topics, "--topics")
    wanted_topics([to], "--to")
    frame = job.frame(session("replay", master), lake, topics=names, since=since, until=until, to=to)
    key = write_id or job.write_id(lake, topics=names, since=since, until=until, to=to)
    writer = frame.write.format("topicsd").options(url=url, writeId=key, **({"token": token} if token else {}))
    writer.mode("append").save()
    tell({"write_id": key, "to": to})


if __name__ == "__main__":
    spark()
