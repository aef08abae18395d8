"""Faults found by pydantic, in the words of this project. Pure."""

from collections.abc import Mapping
from typing import Any

# Texts by the type of the fault; `{}` takes the limit, or the accepted values, from its context.
_TEXTS = {
    "missing": "is missing",
    "extra_forbidden": "no such field",
    "greater_than_equal": "is below {ge}",
    "greater_than": "is not above {gt}",
    "less_than_equal": "is above {le}",
    "less_than": "is not below {lt}",
    "finite_number": "is not a finite number",
    "int_parsing_size": "is not within 64 bits",
    "literal_error": "is not {expected}",
    "enum": "is not {expected}",
    "string_too_short": "has fewer than {min_length} characters",
    "string_too_long": "has more than {max_length} characters",
    "too_short": "has fewer than {min_length} entries",
    "too_long": "has more than {max_length} entries",
}
# Texts by the first word of the type.
_KINDS = {
    "int": "is not a whole number",
    "float": "is not a number",
    "bool": "is neither true nor false",
    "string": "is not text",
    "path": "is not a path",
    "list": "is not a list",
    "dict": "is not an object",
    "model": "is not an object",
}


def worded(fault: Mapping[str, Any]) -> str:
    """A clause about the value. `fault`: one of `ValidationError.errors()`, with its context."""
    kind = fault["type"]
    if kind in ("value_error", "assertion_error"):
        # A validator's own words.
        return str(fault["ctx"]["error"])
    text = _TEXTS.get(kind) or _KINDS.get(kind.split("_")[0], "is not valid")
    return text.format(**fault.get("ctx", {}))
