"""Keeps the cluster's own log lines out of the output of tests, where nobody has set structlog up."""

import logging
import sys
from typing import Any

import structlog


def hush() -> None:
    """Drops what the cluster logs below WARNING. Whoever has configured structlog decides for themselves."""
    if not structlog.is_configured():
        structlog.configure(processors=[_drop, *structlog.get_config()["processors"]])


def speak() -> None:
    """Undoes `hush`, if nobody has configured structlog since."""
    if structlog.get_config()["processors"][:1] == [_drop]:
        structlog.reset_defaults()


def _drop(_logger: object, method: str, event: Any) -> Any:
    if getattr(logging, method.upper(), logging.WARNING) < logging.WARNING and _is_ours():
        raise structlog.DropEvent
    return event


def _is_ours() -> bool:
    """Whether the module that logs is the cluster's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("structlog"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("duetime_")
