"""`POST /v0/admin/export`: an export of this server's data directory (docs/format/export.md), as `topicsd export` makes it.

It runs in a process of its own, so that no request waits for it; the answer comes when it is done. Two at once are safe.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import falcon.asgi
import structlog

from topicsd import errors, limits
from topicsd._native import scan
from topicsd.api import answers
from topicsd.api.answers import performance
from topicsd.api.context import Context
from topicsd.api.gate import Route, exchange_of
from topicsd.api.reading import reading
from topicsd.api.sealing import seal
from topicsd.lake import manifest
from topicsd.lake.scan import matches, wanted_topics
from topicsd.lake.storage import open_storage
from topicsd.objects import is_url

PAGE = 1000
log = structlog.get_logger("export")


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {"/v0/admin/export": Export(context)}


class Export(Route):
    """Run an export to a folder of the server's machine, or to an object store that its environment opens."""

    scopes = {"POST": ("admin",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Seal the topics if that is asked for, export them, answer what was done and how many records are not in the export yet."""
        context, exchange = self.context, exchange_of(req)
        raw = await exchange.body(context.settings.max_body_bytes)
        scan.check_object(raw)
        if exchange.key.prefixes:
            raise errors.Forbidden("an export needs a key that reaches all topics", {"scope": "admin"})
        asked = _read(json.loads(raw))
        wanted: list[str] | None = asked["topics"]
        if asked["seal"]:
            left = self._names(wanted)
            for at_once in limits.SEALS_AT_ONCE:
                shares = [left[at::at_once] for at in range(min(at_once, len(left)))]
                left = [topic for share in await asyncio.gather(*map(self._seal, shares)) for topic in share]
        report, found = await asyncio.to_thread(self._run, asked)
        lag = self._lag(found, wanted)
        for name, value in (("exports", 1), ("export_bytes", report["bytes_copied"])):
            context.figures.add(name, value)
        context.figures.set("export_at_ms", context.now_ms)
        context.figures.set("export_lag", lag)
        answers.send(resp, report | {"lag_records": lag, "performance": performance(exchange)})

    async def _seal(self, topics: list[str]) -> list[str]:
        """Have topics sealed, one after the other; those that are not, or not all of them."""
        left = []
        for topic in topics:
            try:
                if not (await seal(self.context, topic))["sealed"]:
                    left.append(topic)
            except (errors.TopicNotFound, errors.StorageReadOnly):  # what finds no room to be sealed is not exported: `lag_records` has it
                continue
        return left

    def _names(self, wanted: list[str] | None) -> list[str]:
        """The chosen topics that there are now."""
        out: list[str] = []
        after: bytes | None = None
        while True:
            page = self.context.order.page(b"", after, PAGE)
            out += [name.decode("ascii") for _, name in page if matches(name.decode("ascii"), wanted)]
            if len(page) < PAGE:
                return out
            after = page[-1][1]

    def _run(self, asked: dict[str, Any]) -> tuple[dict[str, Any], manifest.Manifest | None]:
        """Run the command; its report, and the manifest that there is then. Raises Invalid: nothing was committed."""
        command = [
            sys.executable,
            "-P",
            "-m",
            "topicsd.cli.main",
            "export",
            "--to",
            asked["to"],
            "--data-dir",
            str(self.context.settings.data_dir.absolute()),
        ]
        if asked["topics"] is not None:
            command += ["--topics", ",".join(asked["topics"])]
        if asked["since"] is not None:
            command += ["--since", asked["since"]]
        done = subprocess.run([*command, *(["--prune"] if asked["prune"] else [])], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            report = dict(json.loads(done.stdout))
            try:
                return report, manifest.read(open_storage(asked["to"]), report["manifest"])
            except (OSError, manifest.ManifestError) as wrong:  # it has been committed: only the lag is not known
                log.error("an export cannot be read", why=str(wrong))
                return report, None
        self.context.figures.add("export_failures")
        told = done.stderr.strip().splitlines()
        log.error("an export failed", code=done.returncode, why=told[-1] if told else "")
        raise errors.Invalid("to", f"the export failed, nothing was committed: {told[-1] if told else done.returncode}")

    def _lag(self, found: manifest.Manifest | None, wanted: list[str] | None) -> int:
        """How many seqs the chosen topics have behind what the export has of them."""
        lag = 0
        for name in self._names(wanted):
            slot = self.context.reader.find(name.encode())
            if slot is None:
                continue
            try:
                with reading():
                    now = self.context.reader.summary(slot, self.context.now_ms)
            except errors.TopicNotFound:
                continue
            known = found.topics.get(name) if found else None
            has = known.next_seq - 1 if known is not None and known.epoch == now["epoch"] else 0
            lag += max(now["head_seq"] - max(has, now["earliest_seq"] - 1), 0)
        return lag


def _is_place(told: object) -> bool:
    return isinstance(told, str) and (is_url(told) or Path(told).is_absolute())


def _read(told: dict[str, Any]) -> dict[str, Any]:
    """Check the body. Raises Invalid."""
    to, topics, since = told.get("to"), told.get("topics"), told.get("since")
    if not _is_place(to):
        raise errors.Invalid("to", "expected the absolute path of a folder on the server's machine, or s3://bucket/prefix")
    if isinstance(topics, str):
        topics = topics.split(",")
    if topics is not None and not (isinstance(topics, list) and topics and all(isinstance(name, str) and name for name in topics)):
        raise errors.Invalid("topics", "expected names, or prefixes with * at their end")
    try:
        topics = wanted_topics(None if topics is None else [name.strip() for name in topics])
    except ValueError as wrong:
        raise errors.Invalid("topics", str(wrong)) from wrong
    if since is not None and not _is_place(since):
        raise errors.Invalid("since", "expected the absolute path of a manifest, or its URL")
    flags = {name: told.get(name, False) for name in ("seal", "prune")}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise errors.Invalid(name, "expected true or false")
    return {"to": to, "topics": topics, "since": since} | flags
