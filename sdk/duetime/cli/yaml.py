"""JSON values as a YAML document in block style."""

import json
import re
from collections.abc import Mapping
from typing import Any

# Texts that need no quotes, also in YAML 1.1, where `no` and `on` are booleans.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.%/-]*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
# Characters that JSON allows within double quotes, and YAML does not.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def document(value: Mapping[str, Any]) -> str:
    """A document, which begins with `---`."""
    return "\n".join(("---", *_lines(value), ""))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for key, one in value.items() for line in _entry(_text(key), one)]
    if isinstance(value, list | tuple) and value:
        return [f"{'  ' if number else '- '}{line}" for one in value for number, line in enumerate(_lines(one))]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    lines = _lines(value)
    if value and isinstance(value, Mapping | list | tuple):
        return [f"{key}:", *(f"  {line}" for line in lines)]
    return [f"{key}: {lines[0]}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        # YAML 1.1 reads 1e-07 as a text.
        return re.sub(r"^(-?[0-9]+)e", r"\1.0e", json.dumps(value))
    return json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return _UNPRINTABLE.sub(lambda char: f"\\u{ord(char[0]):04x}", json.dumps(text, ensure_ascii=False))
