"""Untrusted texts. Pure."""

import re

# Control characters except tab and line end, and characters that change the order of a text.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """The text with escapes such as `\u202e` for invisible characters that terminals and browsers obey."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable(text: str) -> str:
    """The text with escapes for unprintable characters: control characters, line ends and the like."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


SHOWN_CHARS_MAX = 64
_CUT = "..."


def shown(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """A value in its form in errors: quoted, escaped, and cut if it is long."""
    return repr(text) if len(text) <= chars_max else repr(text[:chars_max]) + _CUT
