"""Logging by structlog: console at a terminal, JSON lines elsewhere, always to standard error.

Lines that callers can trigger use a sparing logger (`sparing`): at most one line per kind and second, with the number
of suppressed ones (`suppressed`). So no caller can fill a disk. Log lines of libraries are treated alike, one line
each. Exceptions are logged without their texts (duetime_core.telemetry.traces).
"""

import logging
import sys
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TextIO

import structlog
from duetime_format.texts import visible

from duetime_core.clock import SystemClock
from duetime_core.telemetry.secrets import mask_event
from duetime_core.telemetry.traces import format_exception

SPARING = "sparing"
# Pause between two lines of a kind.
INTERVAL_MS = 1_000
# Kinds are fixed in the code, so they are few. Above this number all are forgotten.
KINDS_MAX = 1_024


class LogLineLimiter:
    """Decides by kind which lines are logged. Pure."""

    def __init__(self) -> None:
        # Time of the last line, and number of lines suppressed since, by kind.
        self._kinds: dict[Hashable, tuple[float, int]] = {}

    def admit(self, kind: Hashable, now_ms: float) -> int | None:
        """The number of lines of this kind suppressed since the last one; None: this one is suppressed too."""
        last = self._kinds.get(kind)
        if last is not None and now_ms < last[0] + INTERVAL_MS:
            self._kinds[kind] = (last[0], last[1] + 1)
            return None
        if last is None and len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (now_ms, 0)
        return last[1] if last is not None else 0


def sparing() -> Any:
    """A logger for lines that callers can trigger at any rate."""
    return structlog.get_logger(SPARING)


class _LimitedWriter(structlog.WriteLogger):
    """The writer of a sparing logger: processors recognise its class."""


class _Writers:
    """Creates the writers of loggers."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, *kinds: Any) -> structlog.WriteLogger:
        return (_LimitedWriter if SPARING in kinds else structlog.WriteLogger)(self._file)


def spare(limit: LogLineLimiter, now_ms: Callable[[], float]) -> structlog.typing.Processor:
    """A processor that drops excess lines of sparing loggers. A kind is a level and an event."""

    def process(logger: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if isinstance(logger, _LimitedWriter):
            suppressed = limit.admit((level, event.get("event")), now_ms())
            if suppressed is None:
                raise structlog.DropEvent
            if suppressed:
                event["suppressed"] = suppressed
        return event

    return process


class LibraryLogHandler(logging.Handler):
    """Forwards the log lines of libraries. A kind is the place in their code, since their texts contain values."""

    def __init__(self, limit: LogLineLimiter, now_ms: Callable[[], float]) -> None:
        super().__init__()
        self._limit = limit
        self._now_ms = now_ms

    def emit(self, record: logging.LogRecord) -> None:
        if _is_unwritten(record):
            structlog.get_logger().debug("answer not written: its call had ended", logger=record.name)
            return
        suppressed = self._limit.admit((record.pathname, record.lineno), self._now_ms())
        if suppressed is None:
            return
        more = {"suppressed": suppressed} if suppressed else {}
        log = structlog.get_logger()
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info, **more)


def _is_unwritten(record: logging.LogRecord) -> bool:
    """Whether gRPC failed to write to a call whose client or connection was gone. Any client can cause it."""
    return bool(record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError")


def _visible(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor that escapes control characters."""
    for name, value in event.items():
        # Other values are shown by their repr: it escapes them.
        if isinstance(value, str):
            event[name] = visible(value)
    return event


def configure_logs(process: str, level: str = "INFO", fmt: str = "auto") -> None:
    """Configures logging for the whole process. `fmt`: auto, json or console."""
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    # Exceptions are already text here: rich is never used, so values of variables stay hidden.
    plain = structlog.dev.plain_traceback
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=plain) if console else structlog.processors.JSONRenderer()
    )
    # Values may contain a sender's control characters, and a terminal would obey them; in JSON they are escaped.
    shown = [_visible] if console else []
    limit, now_ms = LogLineLimiter(), SystemClock().monotonic_ms
    structlog.configure(
        processors=[
            spare(limit, now_ms),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(format_exception),
            mask_event,
            *shown,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=_Writers(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    logging.basicConfig(handlers=[LibraryLogHandler(limit, now_ms)], level=logging.WARNING, force=True)
