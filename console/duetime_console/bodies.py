"""Message bodies on pages: as text, JSON or hexadecimal digits, cut, and never executed. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Literal

from duetime_format.texts import visible

Kind = Literal["text", "json", "hex"]
KINDS: tuple[Kind, ...] = ("text", "json", "hex")

# Characters of the shown part; the download has all.
TEXT_CHARS_MAX = 65_536
HEX_BYTES_MAX = 4_096
# Larger bodies are not parsed.
JSON_BYTES_MAX = 262_144
SNIPPET_CHARS = 120
_LINE_BYTES = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class BodyExcerpt:
    """A body, or its beginning, in one of its possible forms."""

    kind: Kind
    text: str
    is_cut: bool
    kinds: tuple[Kind, ...]


def shown(body: bytes, wanted: str = "") -> BodyExcerpt:
    """The body in the wanted form if possible; else as JSON, text, or hexadecimal digits."""
    text = _decoded(body)
    pretty = _pretty(body) if text is not None else None
    kinds: tuple[Kind, ...] = tuple(
        kind for kind in KINDS if kind == "hex" or (text is not None if kind == "text" else pretty is not None)
    )
    kind: Kind = next((each for each in kinds if each == wanted), "json" if pretty is not None else kinds[0])
    if kind == "hex" or text is None:
        return BodyExcerpt("hex", _dump(body[:HEX_BYTES_MAX]), len(body) > HEX_BYTES_MAX, kinds)
    whole = pretty if kind == "json" and pretty is not None else text
    return BodyExcerpt(kind, visible(whole[:TEXT_CHARS_MAX]), len(whole) > TEXT_CHARS_MAX, kinds)


def snippet(body: bytes, around: str = "") -> str:
    """The beginning of a body on one line, or the surroundings of a text in it."""
    text = body.decode("utf-8", "replace")
    at = max(text.lower().find(around.lower()) - SNIPPET_CHARS // 4, 0) if around else 0
    part = " ".join(text[at : at + SNIPPET_CHARS].split())
    return ("… " if at else "") + visible(part) + (" …" if at + SNIPPET_CHARS < len(text) else "")


def _decoded(body: bytes) -> str | None:
    """None: the body is not text in UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _pretty(body: bytes) -> str | None:
    """JSON with a line for each value, its tokens unchanged; None: not an object or list, or too large."""
    if len(body) > JSON_BYTES_MAX or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return None
    tokens = _TOKEN.findall(body.decode())
    parts: list[str] = []
    depth = chars = 0
    for part, after in zip(tokens, [*tokens[1:], ""], strict=True):
        parts.append(": " if part == ":" else part)
        closes = after in ("}", "]")
        if part in ("{", "["):
            if closes:
                continue
            depth += 1
        elif closes:
            depth -= 1
        elif part != ",":
            continue
        parts.append(_line(depth))
        # Deep lists of many lines would take a thousand times their size.
        chars += len(part) + len(parts[-1])
        if chars > TEXT_CHARS_MAX:
            break
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * depth


def _dump(body: bytes) -> str:
    """`00000010  68 65 6c 6c 6f …  hello`"""
    lines = []
    for at in range(0, len(body), _LINE_BYTES):
        part = body[at : at + _LINE_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _LINE_BYTES - 1}}  {text}")
    return "\n".join(lines)
