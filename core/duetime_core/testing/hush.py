"""Removes the cluster's own log lines from test output, unless structlog is configured."""

import logging
import sys
from typing import Any

import structlog


def hush() -> None:
    """Drops the cluster's log lines below WARNING. A configured structlog is left alone."""
    if not structlog.is_configured():
        structlog.configure(processors=[_drop, *structlog.get_config()["processors"]])


def speak() -> None:
    """Undoes `hush`, unless structlog was configured since."""
    if structlog.get_config()["processors"][:1] == [_drop]:
        structlog.reset_defaults()


def _drop(_logger: object, method: str, event: Any) -> Any:
    if getattr(logging, method.upper(), logging.WARNING) < logging.WARNING and _is_ours():
        raise structlog.DropEvent
    return event


def _is_ours() -> bool:
    """Whether the logging module belongs to the cluster."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("structlog"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("duetime_")
