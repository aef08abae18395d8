"""Texts of strangers. Pure."""


def printable(text: str) -> str:
    """With escapes for what is not printable: control characters, line ends and the like."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


SHOWN_CHARS_MAX = 64
_CUT = "..."


def shown(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """A value as errors show it: quoted, escaped, and cut where it is long."""
    return repr(text) if len(text) <= chars_max else repr(text[:chars_max]) + _CUT
