"""Reference pages from tables of other documents: a heading for each error, metric and setting."""

import re
from collections.abc import Iterator
from pathlib import Path

from deploy.site.documents import PROJECT, relinked, rows, section

PROTOCOL = PROJECT / "docs" / "protocol.md"
OPERATIONS = PROJECT / "docs" / "operations.md"
SERVICES = {"store": "store", "producer_gw": "gateway", "scheduler": "scheduler", "retry": "retry"}
# The SDK's class for a status, the same as in duetime.client.errors.
ERROR_CLASSES = {
    "INVALID_ARGUMENT": "InvalidArgument",
    "UNIMPLEMENTED": "Unsupported",
    "UNAUTHENTICATED": "Unauthenticated",
    "PERMISSION_DENIED": "PermissionDenied",
    "NOT_FOUND": "NotFound",
    "ALREADY_EXISTS": "AlreadyExists",
    "FAILED_PRECONDITION": "Conflict",
    "RESOURCE_EXHAUSTED": "Overloaded",
    "UNAVAILABLE": "Unavailable",
    "DATA_LOSS": "Damaged",
    "INTERNAL": "ServerError",
}


def _codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _upper(text: str) -> str:
    """A text with an upper-case first letter; one that starts with a value, such as `sync:`, is unchanged."""
    return text if re.match(r"\w+:", text) else text[:1].upper() + text[1:]


def errors(place: Path) -> str:
    """A heading for each reason, with its status, meaning, whether to repeat the call, and the SDK's class."""
    found: dict[str, list[str]] = {}
    for cells in rows(section(PROTOCOL.read_text(), "Errors")):
        if len(cells) == 4 and (reasons := _codes(cells[0])):
            kinds = [ERROR_CLASSES[word] for word in re.findall(r"[A-Z_]{5,}", cells[1]) if word in ERROR_CLASSES]
            lines = [f"Status: {cells[1]}."]
            if kinds:
                names = ", ".join(f"[`{kind}`](sdk/errors.md#{kind.lower()})" for kind in dict.fromkeys(kinds))
                lines.append(f"In the SDK: {names}.")
            lines += [f"Meaning: {_upper(relinked(cells[2], PROTOCOL, place))}.", f"Repeat it: {cells[3]}."]
            for reason in reasons:
                found.setdefault(reason, []).append("  \n".join(lines))
    parts = [
        "# Errors\n\nEach error carries a `reason`, which is stable. `DueTimeError.reason` has it in Python,"
        " `google.rpc.ErrorInfo` in other languages. Its text is for people and may change."
    ]
    for reason in sorted(found):
        parts += [f"## {reason}", *found[reason]]
    return "\n\n".join(parts) + "\n"


def metrics(place: Path) -> str:
    """A heading for each metric, with its labels and meaning."""
    parts = ["# Metrics\n\nEvery process serves them in Prometheus' format, on its metrics port at `/metrics`."]
    for cells in rows(section(OPERATIONS.read_text(), "Metrics")):
        names = [name for name in _codes(cells[0]) if name.startswith(("duetime_", "process_"))]
        if len(cells) == 3 and names:
            labels = f"Labels: {cells[1]}.\n\n" if cells[1] else ""
            text = relinked(cells[2], OPERATIONS, place)
            # A text about several metrics describes them in their order.
            text = f"{', '.join(f'`{name}`' for name in names)}: {text}" if len(names) > 1 else _upper(text)
            scope = re.search(r"\((?!`)([^()]+)\)$", cells[0])
            for name in names:
                parts += [f"## {name}", *([f"Of: {scope[1]}."] if scope else []), f"{labels}{text}."]
    return "\n\n".join(parts) + "\n"


def _settings(readme: Path, place: Path) -> Iterator[str]:
    for cells in rows(readme.read_text()):
        variables = [code for code in _codes(cells[1]) if code.isupper()] if len(cells) == 4 else []
        if variables:
            marks = "".join(f'<span id="{name.lower()}"></span>' for name in variables)
            yield f"### {cells[0]}"
            lines = [f"{marks}Variable: {cells[1]}.", f"Default: {cells[2] or 'none'}."]
            yield "  \n".join(lines)
            if cells[3]:
                yield f"{_upper(relinked(cells[3], readme, place))}."


def settings(place: Path) -> str:
    """A heading for each setting of each process."""
    parts = [
        "# Settings\n\nA process reads flags first, then variables of its environment. An unknown variable with a"
        " process's prefix is a fault. [Operations](../operations.md#settings) has the variables of all processes and"
        " of clients."
    ]
    for folder, process in SERVICES.items():
        readme = PROJECT / "services" / folder / "README.md"
        parts += [f"## {_upper(process)}", *_settings(readme, place)]
    return "\n\n".join(parts) + "\n"
