"""Texts of strangers. Pure."""


def printable(text: str) -> str:
    """With escapes for what is not printable: control characters, line ends and the like."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
