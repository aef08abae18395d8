"""Schedules as text, and as JSON in both directions."""

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from duetime_format.texts import printable, shown

from duetime.cli.messages import body_text
from duetime.cli.output import iso, local, on_one_line
from duetime.cli.output import length as length_text
from duetime.client.administering.schedules import Schedule, ScheduleDefinition
from duetime.client.errors import InvalidArgument
from duetime.client.message import Message

# Fields of a schedule's state, which a definition does not have.
_STATE = frozenset(("pause_reason", "next_at", "moved_from", "version", "created_at", "id"))


def schedule_page(found: Schedule) -> str:
    """All fields of a schedule, for people."""
    lines = [
        f"name        {printable(found.name)}",
        f"topic       {found.topic}",
        f"times       {rule_text(found)}",
        f"next        {next_text(found)}",
        f"missed      {found.missed}",
        f"version     {found.version}, created {local(found.created_at)}",
    ]
    lines += [f"in gap      {found.in_gap}"] if found.in_gap != "end" else []
    lines += [f"in fold     {found.in_fold}"] if found.in_fold != "first" else []
    lines += [f"tags        {printable(found.tags)}"] if found.tags else []
    lines += [f"retry       {found.retry}"] if found.retry else []
    lines += [f"expires     {_length(found.expires)} after its due time"] if found.expires else []
    lines += [f"property    {printable(f'{name}={value}')}" for name, value in sorted(found.properties.items())]
    lines += [f"body        {on_one_line(found.body)}"]
    return "\n".join(lines)


def rule_text(found: Schedule) -> str:
    if found.every is not None:
        return f"every {_length(found.every)}"
    if found.at:
        return f"at {len(found.at)} times"
    return f"{printable(found.cron)} {found.zone}"


def _length(found: timedelta) -> str:
    return length_text(round(found / timedelta(milliseconds=1)))


def next_text(found: Schedule) -> str:
    if found.paused:
        return f"paused: {printable(found.pause_reason)}" if found.pause_reason else "paused"
    if not found.next_at:
        return ""
    moved = f", moved by its time zone from {local(found.moved_from)}" if found.moved_from else ""
    return f"{local(found.next_at[0])}{moved}"


def schedule_object(found: Schedule) -> dict[str, Any]:
    """A schedule for machines."""
    every_ms = None if found.every is None else round(found.every / timedelta(milliseconds=1))
    is_cron = bool(found.cron)
    return {
        "name": found.name,
        "topic": found.topic,
        "every_ms": every_ms,
        "start_at": iso(found.start),
        "at": [iso(one) for one in found.at],
        "cron": found.cron or None,
        "zone": found.zone or None,
        "in_gap": found.in_gap if is_cron else None,
        "in_fold": found.in_fold if is_cron else None,
        "missed": found.missed,
        "paused": found.paused,
        "pause_reason": found.pause_reason or None,
        "next_at": [iso(one) for one in found.next_at],
        "moved_from": iso(found.moved_from),
        "version": found.version,
        "created_at": iso(found.created_at),
        "id": found.message_id,
        **body_text(found.body),
        "tags": found.tags,
        "properties": found.properties,
        "flag": found.flag,
        "expires_ms": None if found.expires is None else round(found.expires / timedelta(milliseconds=1)),
        "retry": found.retry,
    }


def definition_of(line: bytes) -> ScheduleDefinition | InvalidArgument:
    """The definition of a schedule in the form of `schedule_object`, or its fault. Fields of its state are ignored."""
    try:
        found = json.loads(line)
        # Half a pair of surrogates can be neither sent nor printed.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return InvalidArgument.of("line", f"is no JSON in UTF-8: {error}")
    if not isinstance(found, dict):
        return InvalidArgument.of("line", "is no JSON object")
    given = {name: value for name, value in found.items() if value is not None and name not in _STATE}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _READERS:
            return InvalidArgument.of(name, "no such field")
        try:
            values[name] = _READERS[name](value)
        except (TypeError, ValueError, OverflowError):
            return InvalidArgument.of(name, f"{shown(str(value))} is not such a value")
    if missing := [name for name in ("name", "topic") if name not in values]:
        return InvalidArgument.of(missing[0], "is missing")
    if "body" in values and "body_base64" in values:
        return InvalidArgument.of("body_base64", "is given beside body")
    return _definition(values)


def _definition(values: dict[str, Any]) -> ScheduleDefinition | InvalidArgument:
    own: dict[str, Any] = {name: values[name] for name in ("tags", "properties", "flag", "retry") if name in values}
    own["expires"] = values.get("expires_ms")
    body = values.get("body_base64", values.get("body", b""))
    names = {"every_ms": "every", "start_at": "start"}
    times: dict[str, Any] = {
        names.get(name, name): values[name]
        for name in ("every_ms", "start_at", "at", "cron", "zone", "in_gap", "in_fold", "missed")
        # The list has no times for the other kinds.
        if name in values and values[name] != []
    }
    message = Message(values["topic"], body, **own)
    return ScheduleDefinition(values["name"], message, paused=values.get("paused", False), **times)


def _of_type(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return read


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise TypeError
    return value


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError
    return found


# The fields of a definition, each with the function that reads its value.
_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "topic", "cron", "zone", "in_gap", "in_fold", "missed", "tags", "retry"), _of_type(str)),
    **dict.fromkeys(("every_ms", "expires_ms"), lambda value: timedelta(milliseconds=_of_type(int)(value))),
    "flag": _of_type(int),
    "paused": _of_type(bool),
    "start_at": _moment,
    "at": lambda value: [_moment(one) for one in _of_type(list)(value)],
    "properties": _texts,
    "body": lambda value: _of_type(str)(value).encode(),
    "body_base64": lambda value: base64.b64decode(_of_type(str)(value), validate=True),
}
