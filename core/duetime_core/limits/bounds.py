"""Limits the size of errors in answers, and of values in their texts. Pure.

A status travels in HTTP/2 headers, of which gRPC accepts 8 KiB; above that, a client randomly rejects answers with a
status of its own. The text is included twice, percent-encoded and in base64, which leaves little space. Within these
limits an encoded status is below 4 KiB for any error; `tests/core/test_bounds.py` proves it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duetime_format.limits import (
    ERROR_METADATA_BYTES_MAX,
    ERROR_TEXT_BYTES_MAX,
    ERROR_VIOLATIONS_BYTES_MAX,
    REASON_CHARS_MAX,
    VIOLATION_BYTES_MAX,
    VIOLATION_FIELD_BYTES_MAX,
)

from duetime_core.errors import DueTimeError, Violation, sentence

_CUT = "..."
# Space for the count of omitted violations.
_MORE_BYTES = len("; and 1000000000 more")
# Most bytes that protobuf adds to a violation.
_VIOLATION_FRAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class BoundedError:
    """An error as included in answers: within the limits, and valid UTF-8."""

    text: str
    reason: str
    violations: Sequence[Violation]
    metadata: Mapping[str, str] = field(default_factory=dict)


def brief(error: DueTimeError) -> BoundedError:
    """The error within the limits: the first violations, and the number of the others."""
    violations = error.violations
    kept = _first(violations)
    if not violations or error.text != sentence(violations):
        text = cut(error.text, ERROR_TEXT_BYTES_MAX)
    elif len(kept) == len(violations):
        text = sentence(kept)
    else:
        text = f"{sentence(kept)}; and {len(violations) - len(kept)} more"
    return BoundedError(text, cut(error.reason, REASON_CHARS_MAX), kept, {} if kept else _metadata(error.metadata))


def _metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries, if all fit: a truncated value would name something else."""
    found = {_clean(name): _clean(value) for name, value in metadata.items()}
    size = sum(len(text.encode()) for entry in found.items() for text in entry)
    return found if size <= ERROR_METADATA_BYTES_MAX else {}


def _clean(text: str) -> str:
    """Valid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def cut(text: str, bytes_max: int) -> str:
    """The beginning of a text that takes at most `bytes_max` in gRPC's encoding, marked if truncated."""
    # Each character takes at least one byte, so the rest of the text need not be inspected.
    text, whole = text[: bytes_max + 1], text
    text = _clean(text)
    room = bytes_max
    for at, char in enumerate(text):
        room -= _weight(char)
        if room < 0:
            return _shortened(text[:at], bytes_max)
    return text if len(text) >= len(whole) else _shortened(text, bytes_max)


def weight(text: str) -> int:
    """Bytes of a text in gRPC's percent-encoding, which triples characters other than plain ASCII."""
    return sum(map(_weight, text))


def _weight(char: str) -> int:
    return 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode())


def _shortened(text: str, bytes_max: int) -> str:
    while text and weight(text) + len(_CUT) > bytes_max:
        text = text[:-1]
    return text + _CUT


def _first(violations: Sequence[Violation]) -> list[Violation]:
    """The first violations that fit into both the text and the list."""
    kept: list[Violation] = []
    text_room, list_room = ERROR_TEXT_BYTES_MAX - _MORE_BYTES, ERROR_VIOLATIONS_BYTES_MAX
    for one in violations:
        field = cut(one.field, VIOLATION_FIELD_BYTES_MAX)
        description = cut(one.description, VIOLATION_BYTES_MAX)
        text_room -= weight(field) + weight(description) + len(": ; ")
        list_room -= len(field.encode()) + len(description.encode()) + _VIOLATION_FRAME_BYTES
        if kept and (text_room < 0 or list_room < 0):
            break
        kept.append(Violation(field, description))
    return kept
