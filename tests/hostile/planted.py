"""Secrets and texts planted all over a cluster, and the search for them in its output."""

import base64
import secrets
import string
from collections.abc import Iterable, Mapping

_LETTERS = string.ascii_letters + string.digits
CHARS = 40


def plant() -> str:
    """A text that comes up nowhere by chance, and looks like nothing that a mask knows."""
    return "".join(secrets.choice(_LETTERS) for _ in range(CHARS))


def forms(text: str) -> list[str]:
    """A text as it is, and as encodings show it wherever it begins."""
    data = text.encode()
    encoded = [base64.b64encode(b"\0" * shift + data).decode() for shift in range(3)]
    # Characters that depend on the surrounding text are left out.
    return [text, data.hex(), data.hex().upper(), *(one[4 * bool(shift) : -4] for shift, one in enumerate(encoded))]


def found(planted: Mapping[str, str], told: Mapping[str, str]) -> list[str]:
    """Planted texts, and the outputs that contain them."""
    return [
        f"{name} in {place}"
        for name, text in planted.items()
        for place, words in told.items()
        if _is_in(forms(text), words)
    ]


def _is_in(sought: Iterable[str], words: str) -> bool:
    return any(one in words for one in sought)
