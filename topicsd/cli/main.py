"""`topicsd`: `serve` and `version` stand here, every other command in a file of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import topicsd
from topicsd.cli.backup import backup, restore
from topicsd.cli.dump import dump
from topicsd.cli.export import export
from topicsd.cli.fsck import fsck
from topicsd.spark.jobs import spark


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """topicsd: durable topics over HTTP, one writer behind shared-memory rings."""


main.add_command(backup)
main.add_command(dump)
main.add_command(export)
main.add_command(fsck)
main.add_command(spark)
main.add_command(restore)


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(topicsd.__version__)


@main.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with settings by name [TOPICS_CONFIG]")
@click.option("--host", help="address to listen on [TOPICS_HOST, 127.0.0.1]")
@click.option("--port", type=int, help="port to listen on, 0 for any free one [TOPICS_PORT, 4000]")
@click.option("--port-file", type=click.Path(path_type=Path), help="file to write host:port into once the server listens [TOPICS_PORT_FILE]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="data directory [TOPICS_DATA_DIR, ./data]")
@click.option("--workers", type=int, help="worker processes [TOPICS_WORKERS, 1]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="least level that is logged [TOPICS_LOG_LEVEL, info]")
@click.option("--group-commit-ms", type=int, help="longest time between two syncs of the log [TOPICS_GROUP_COMMIT_MS, 5]")
@click.option("--drain-ms", type=int, help="longest time a shutdown waits for requests [TOPICS_DRAIN_MS, 10000]")
def serve(config: Path | None, **flags: object) -> None:
    """Serve topics until SIGTERM or Ctrl-C. Every setting is also an environment variable TOPICS_…; a flag wins."""
    from topicsd import logs, settings
    from topicsd.api import auth

    try:
        named = os.environ.get("TOPICS_CONFIG")
        chosen = settings.load(flags, config or (Path(named) if named else None))
        logs.configure(chosen.log_level)
        keyring = auth.Keyring.parse(settings.take_api_keys())
        warning = auth.check_exposure(chosen.host, keyring, chosen.allow_insecure_no_auth)
        _warn(warning)

        from topicsd import supervisor

        supervisor.serve(chosen, keyring)
    except settings.SettingsError as wrong:
        click.echo(f"topicsd: {wrong}", err=True)
        sys.exit(2)


def _warn(warning: str | None) -> None:
    import structlog

    from topicsd import settings

    log = structlog.get_logger("topicsd")
    if warning:
        log.warning(warning)
    for name in settings.unknown_variables():
        log.warning("unknown setting is ignored", name=name)


if __name__ == "__main__":
    main()
