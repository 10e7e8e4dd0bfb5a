"""Liveness and readiness (A §8.1, §8.2)."""

from __future__ import annotations

import errno
import os
from typing import Any

import falcon.asgi

import topicsd
from topicsd import limits
from topicsd.api import answers
from topicsd.api.context import Context
from topicsd.api.gate import Route
from topicsd.log_archive import AWAY
from topicsd.segments.cold_tier import HANGS, WHY


class Health(Route):
    """`GET /v0/health`, `/healthz`: 200 as long as the process can serve."""

    scopes = {"GET": ()}  # noqa: RUF012
    needs_ready = False

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Say that the process lives."""
        answers.send(resp, {"status": "ok", "version": topicsd.__version__, "uptime_ms": self.context.uptime_ms})

    on_head = on_get


class Ready(Route):
    """`GET /v0/ready`, `/readyz`: 503 during replay and while the server drains."""

    scopes = {"GET": ()}  # noqa: RUF012
    needs_ready = False

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Say whether requests are served, and what is wrong if they are with a restriction."""
        self.context.check_ready()
        body: dict[str, Any] = {"status": "ready", "wal_replay_complete": True, "topics": self.context.shared.get("topics")}
        if reasons := restrictions(self.context):
            body |= {"degraded": True, "reasons": reasons}
        answers.send(resp, body)

    on_head = on_get


def restrictions(context: Context) -> list[str]:
    """Say in words what does not work: a read-only log, a cold tier or an archive that is away, damage that was found."""
    reasons = []
    for number in range(limits.LOG_SHARDS_MAX):  # a directory may hold more shards than the setting says
        if code := int(str(context.shared.shard(number)["read_only"])):
            name = errno.errorcode.get(code, str(code))
            reasons.append(f"storage_read_only: log shard {number} takes no writes ({name}: {os.strerror(code)})")
    if (held := context.figures.get("log_held_bytes")) > limits.LOG_HELD_BYTES_TOLD:
        reasons.append(f"log_held: {held} bytes of the log are held by what is neither sealed nor copied; the writer's log names the topic")
    if away := context.figures.get("cold_away"):
        lacks = "nothing is moved there or removed" if away == HANGS else "what stands there is not served"
        reasons.append(f"cold_unavailable: {context.settings.cold_dir}: {WHY[away]}; {lacks} until it is back")
    if context.figures.get("archive_away"):
        reasons.append(f"archive_unavailable: {context.settings.log_archive_dir}: {AWAY}")
    if code := context.figures.get("archive_refuses"):
        why = f"{errno.errorcode.get(code, str(code))}: {os.strerror(code)}"
        reasons.append(
            f"archive_unavailable: {context.settings.log_archive_dir}: it takes no log files ({why}); they stay in the data directory until it does"
        )
    return reasons + damages(context)


def damages(context: Context) -> list[str]:
    """Say in words what has been found damaged: `topics_degraded` is 1 while there is something."""
    reasons = []
    figures, shared = context.figures, context.shared
    if shared.get("damage_met") != figures.get("damage_looked") or shared.get("log_damage_met") != figures.get("log_damage_looked"):
        reasons.append("damage: a read has met bytes that are not what was written; they are being looked at")
    if lost := figures.get("jobs_lost"):
        reasons.append(f"damage: {lost} jobs of queues were taken out because their bytes are damaged; the log names them")
    if ranges := figures.get("log_damaged"):
        reasons.append(
            f"damage: {ranges} ranges of the log are not as they were written; readers see a tombstone there;"
            " the log from there on is kept until the next start sets them aside"
        )
    if damaged := figures.get("damaged"):
        reasons.append(f"damage: the scrub has found {damaged} places in sealed files that are not as they were written; `topicsd fsck` names them")
    if newer := figures.get("newer"):
        reasons.append(
            f"newer version: {newer} parts of sealed files are of a format that this program does not know; they stay as they are, and readers see"
            " a tombstone where no other part will do; the keeper's log names them; use the release that wrote them (docs/operations.md, Upgrades)"
        )
    if shared.get("degraded"):
        reasons.append("damage: a range of the log could not be read and was set aside; readers see a tombstone there")
    return reasons
