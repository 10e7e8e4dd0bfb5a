"""Logs: one line an event on stderr, `time level logger event key=value…`. Nothing that a client sends as a header is ever logged."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog
from gunicorn import glogging

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str = "info") -> None:
    """Set up structlog for this process and those it forks."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "logger", "event"], drop_missing=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_NamedFactory(),
        cache_logger_on_first_use=True,
    )


class _NamedFactory:
    """Make loggers that write to the stderr of their process and say their name."""

    def __call__(self, *names: str) -> _Line:
        return _Line(names[0] if names else "topicsd")


class _Line:
    """Write whole lines: each is one write, so that lines of several processes do not mix."""

    def __init__(self, name: str) -> None:
        self._name = name

    def msg(self, message: str) -> None:
        """Write one line."""
        try:
            sys.stderr.write(f"{message} logger={self._name!r}\n")
            sys.stderr.flush()
        except OSError:
            pass  # a full disk or a closed terminal must not stop the server

    debug = info = warning = error = critical = fatal = failure = exception = log = msg


class GunicornLog(glogging.Logger):  # type: ignore[misc]
    """Send what gunicorn says through structlog; its access log is off."""

    def setup(self, cfg: Any) -> None:
        """Take no handlers of logging's."""
        self._structlog = structlog.get_logger("gunicorn")
        self._access_enabled = False
        self.error_log.propagate = False
        self.error_log.setLevel(logging.WARNING)
        self.access_log.propagate = False

    @property
    def access_log_enabled(self) -> bool:
        """Say that there is no access log."""
        return False

    def debug(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Drop."""

    def info(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log at level debug: gunicorn's infos are chatter."""
        self._structlog.debug(_filled(msg, args))

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log a warning."""
        self._structlog.warning(_filled(msg, args))

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log an error."""
        self._structlog.error(_filled(msg, args), exc_info=bool(kwargs.get("exc_info")) or None)

    def critical(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log an error."""
        self._structlog.error(_filled(msg, args))

    def exception(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log an error with its traceback."""
        self._structlog.error(_filled(msg, args), traceback=traceback.format_exc())

    def log(self, lvl: Any, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log at a numeric level."""
        (self.error if isinstance(lvl, int) and lvl >= logging.ERROR else self.info)(msg, *args)

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        """Log no requests."""

    def reopen_files(self) -> None:
        """Hold no files."""

    def close_on_exec(self) -> None:
        """Hold no files."""


def _filled(message: str, args: tuple[Any, ...]) -> str:
    try:
        return str(message) % args if args else str(message)
    except (TypeError, ValueError):
        return f"{message} {args}"
