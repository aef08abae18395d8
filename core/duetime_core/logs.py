"""Logging by structlog: console at a terminal, JSON lines elsewhere, always to standard error."""

import logging
import sys

import structlog

from duetime_core.secrets import mask_event, masked


class _Masked(logging.Formatter):
    """Of what libraries log."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def configure_logs(process: str, level: str = "INFO", fmt: str = "auto") -> None:
    """Sets logging up for the whole process. `fmt`: auto, json or console."""
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            mask_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    of_libraries = logging.StreamHandler(sys.stderr)
    of_libraries.setFormatter(_Masked("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[of_libraries], level=logging.WARNING, force=True)
