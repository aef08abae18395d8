"""All targets: importing this names them."""

from tests.fuzz import file_targets, format_targets, request_targets
from tests.fuzz.target import TARGETS

__all__ = ["TARGETS", "file_targets", "format_targets", "request_targets"]
