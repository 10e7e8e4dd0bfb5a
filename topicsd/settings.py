"""What an operator can set. A flag wins over a TOPICS_… variable, that over the TOML file (--config), that over the default.

A misspelt key in the file is refused, and so is a value out of range; the message names the variable. The keys may come from a
file: TOPICS_API_KEYS_FILE. `Settings` is made once, before the first fork; it never holds a key in clear (see topicsd/api/auth.py).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from topicsd import limits

PREFIX = "TOPICS_"
SECRETS = ("api_keys",)

Cap = Annotated[int, Field(ge=0, le=2**63)]  # 0: no limit


def _front(value: object) -> object:
    return {"0": "falcon", "off": "falcon", "1": "native", "on": "native"}.get(str(value).lower(), value)


class SettingsError(Exception):
    """Tell an operator which setting is wrong and why."""


class Settings(BaseSettings):
    """All settings of `topicsd serve`; each field is TOPICS_<FIELD>, `--<field>` where a flag exists, and `<field>` in the TOML file."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    # where
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 4000
    port_file: Path | None = None
    data_dir: Path = Path("data")

    # who
    allow_insecure_no_auth: bool = False
    probe_auth: bool = False

    # processes
    workers: Annotated[int, Field(ge=1, le=limits.WORKERS_MAX)] = 1
    drain_ms: Annotated[int, Field(ge=0, le=limits.DRAIN_MS_MAX)] = limits.DRAIN_MS
    front: Annotated[Literal["native", "falcon"], BeforeValidator(_front)] = "native"  # who reads the connections; 0, off: falcon
    access_log: bool = False  # a line a request; nothing is served natively then
    websocket_deflate: bool = False  # let clients negotiate permessage-deflate: it costs more than it saves on a fast line
    websocket_echo: bool = False  # for protocol test suites: /v0/ws says back what is said
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    # log
    group_commit_ms: Annotated[int, Field(ge=0, le=limits.GROUP_COMMIT_MS_MAX)] = 5
    log_shards: Annotated[int, Field(ge=1, le=limits.LOG_SHARDS_MAX)] = 1
    log_file_bytes: Annotated[int, Field(ge=limits.MIB, le=2**40)] = 64 * limits.MIB
    segment_max_events: Annotated[int, Field(ge=0, le=limits.SEGMENT_EVENTS_HARD_MAX)] = limits.SEGMENT_EVENTS_MAX
    segment_max_bytes: Annotated[int, Field(ge=0, le=limits.GIB)] = limits.SEGMENT_BYTES_MAX
    segment_max_age_ms: Annotated[int, Field(ge=0)] = limits.SEGMENT_AGE_MS_MAX
    segment_rewrite: bool = True  # of files of which next to nothing is alive
    scrub_bytes_per_second: Annotated[int, Field(ge=0, le=2**40)] = limits.SCRUB_BYTES_PER_SECOND  # 0: no scrub
    cold_dir: str | None = None  # a folder, or s3://bucket/prefix
    hot_retain_segments: Annotated[int, Field(ge=0)] = limits.HOT_RETAIN_SEGMENTS
    hot_retain_bytes: Annotated[int, Field(ge=0)] = 0
    cold_cache_bytes: Annotated[int, Field(ge=limits.MIB, le=2**40)] = 64 * limits.MIB
    cold_wait_ms: Annotated[int, Field(ge=1, le=60_000)] = limits.COLD_WAIT_MS
    checkpoint_bytes: Annotated[int, Field(ge=0)] = limits.CHECKPOINT_LOG_BYTES
    checkpoint_ms: Annotated[int, Field(ge=0)] = limits.CHECKPOINT_MS
    log_archive_dir: Path | None = None
    log_direct: bool = True
    ephemeral_bytes_max: Annotated[int, Field(ge=limits.MIB, le=2**46)] = limits.EPHEMERAL_BYTES_MAX

    # one request (A §2)
    max_batch_records: Annotated[int, Field(ge=1, le=1_000_000)] = limits.BATCH_RECORDS_MAX
    max_record_bytes: Annotated[int, Field(ge=1, le=limits.RECORD_BYTES_HARD_MAX)] = limits.RECORD_BYTES_MAX
    max_body_bytes: Annotated[int, Field(ge=1, le=limits.BODY_BYTES_HARD_MAX)] = limits.BODY_BYTES_MAX
    max_meta_bytes: Annotated[int, Field(ge=2, le=limits.RECORD_BYTES_HARD_MAX)] = limits.META_BYTES_MAX
    max_tag_bytes: Annotated[int, Field(ge=0, le=limits.TAG_BYTES_HARD_MAX // 6)] = limits.TAG_BYTES_MAX  # escaped, a byte may take six
    max_node_bytes: Annotated[int, Field(ge=0, le=limits.TAG_BYTES_HARD_MAX // 6)] = limits.NODE_BYTES_MAX
    max_limit: Annotated[int, Field(ge=1, le=100_000)] = limits.DIFF_RECORDS_MAX
    max_claim: Annotated[int, Field(ge=1, le=limits.CLAIM_RECORDS_HARD_MAX)] = limits.CLAIM_RECORDS_MAX

    # resources (A §11)
    max_topics: Annotated[int, Field(ge=0, le=limits.TOPICS_HARD_MAX)] = limits.TOPICS_MAX
    max_routers: Cap = limits.ROUTERS_MAX
    max_watch_sessions: Cap = limits.WATCH_SESSIONS_MAX
    max_watch_topics: Annotated[int, Field(ge=1, le=limits.PATTERN_TOPICS_MAX)] = limits.WATCH_TOPICS_MAX
    session_ttl_ms: Annotated[int, Field(ge=1000, le=86_400_000)] = limits.SESSION_TTL_MS
    max_sse_connections: Cap = limits.SSE_CONNECTIONS_MAX
    max_sse_connections_per_key: Cap = limits.SSE_CONNECTIONS_PER_KEY_MAX
    max_inflight_per_key: Cap = limits.INFLIGHT_PER_KEY_MAX
    max_total_bytes: Cap = 0
    max_idempotency_keys: Cap = limits.IDEMPOTENCY_KEYS_MAX

    @property
    def topics_max(self) -> int:
        """Return the most topics there may be: `max_topics`, or the table's hard maximum for 0."""
        return self.max_topics or limits.TOPICS_HARD_MAX

    @property
    def ring_slots(self) -> int:
        """Return how many ring slots there are: an old and a new worker may live side by side."""
        return 2 * self.workers + 2

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the flags first, then the environment, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, dict(_file_values))


_file_values: dict[str, Any] = {}  # of the --config being loaded; `load` sets and clears it


def load(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Read all sources.

    flags: values by field name; None means not given. config: a TOML file, or None. Raises SettingsError with a line for each
    wrong setting.
    """
    global _file_values
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    _file_values = _read_config(config) if config else {}
    try:
        return Settings(**given)
    except ValidationError as wrong:
        raise SettingsError("\n".join(_explain(error["loc"], error["msg"], given) for error in wrong.errors())) from None
    finally:
        _file_values = {}


def take_api_keys(environ: MutableMapping[str, str] = os.environ) -> str:
    """Return the text of the API keys and remove it from the environment, so that no child inherits it.

    TOPICS_API_KEYS, or the contents of TOPICS_API_KEYS_FILE (commas or lines). Raises SettingsError when both are set or the file
    cannot be read. (A §0.2, CLARIFICATIONS Auth)
    """
    text = environ.pop(f"{PREFIX}API_KEYS", "")
    path = environ.pop(f"{PREFIX}API_KEYS_FILE", "")
    if not path:
        return text
    if text:
        raise SettingsError("TOPICS_API_KEYS and TOPICS_API_KEYS_FILE are both set: keep one of them")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"TOPICS_API_KEYS_FILE: {path}: {getattr(wrong, 'strerror', None) or 'no UTF-8'}") from None
    keys = ",".join(line.strip().removesuffix(",") for line in lines if line.strip())
    if not keys:
        raise SettingsError(f"TOPICS_API_KEYS_FILE: {path} is empty")
    return keys


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Name the TOPICS_… variables that no setting has: likely misspelt, worth a warning."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {PREFIX + "CONFIG"}
    known |= {PREFIX + name.upper() + ending for name in SECRETS for ending in ("", "_FILE")}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise SettingsError(f"{path}: {wrong.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"{path}: {wrong}") from None
    unknown = sorted(set(values) - set(Settings.model_fields))
    if unknown:
        hints = " (keys are secrets: use TOPICS_API_KEYS_FILE)" if set(unknown) & set(SECRETS) else ""
        raise SettingsError(f"{path}: no such setting: {', '.join(unknown)}{hints}")
    return values


def _explain(location: tuple[int | str, ...], message: str, flags: Mapping[str, Any]) -> str:
    # pydantic names the field as the source spelt it
    name = str(location[0]) if location else "?"
    field = name.lower().removeprefix(PREFIX.lower())
    source = f"--{field.replace('_', '-')}" if field in flags else PREFIX + field.upper()
    if f"{PREFIX}{field.upper()}" not in os.environ and field not in flags and field in _file_values:
        source = f"{PREFIX}{field.upper()} ({field} in the configuration file)"
    return f"{source}: {message[0].lower()}{message[1:]}"
