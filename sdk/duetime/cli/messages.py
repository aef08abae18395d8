"""Formats of messages, for people and for machines."""

import base64
import textwrap
from collections.abc import Sequence
from typing import Any

from duetime_format.texts import printable

from duetime.cli.output import iso, local, on_one_line
from duetime.client.errors import Damaged
from duetime.client.finding.dead_letters import FailedAttempt
from duetime.client.finding.finder import FoundMessage
from duetime.client.record import ReceivedMessage
from duetime.client.view import MessageView


def message_line(message: ReceivedMessage | FoundMessage) -> str:
    """A message for people."""
    parts = [local(message.stored_at), f"{message.topic}/{message.queue}@{message.offset}"]
    if message.tags:
        parts.append(f"tags={printable(message.tags)}")
    if message.keys:
        parts.append(f"keys={printable(','.join(message.keys))}")
    if message.priority is not None:
        parts.append(f"priority={message.priority}")
    if message.lite_topic:
        parts.append(f"lite={printable(message.lite_topic)}")
    if message.expires_at is not None:
        parts.append(f"expires={local(message.expires_at)}")
    if message.late_ms is not None:
        parts.append(f"late={message.late_ms}ms")
    try:
        parts.append(on_one_line(message.body))
    except Damaged as error:
        parts.append(f"({error})")
    return "  ".join(parts)


def content_lines(message: MessageView) -> list[str]:
    """Tags, keys, properties and body for people."""
    lines = [f"tags        {printable(message.tags)}"] if message.tags else []
    lines += [f"keys        {printable(', '.join(message.keys))}"] if message.keys else []
    lines += [f"priority    {message.priority}"] if message.priority is not None else []
    lines += [f"expires     {local(message.expires_at)}"] if message.expires_at is not None else []
    lines += [f"property    {printable(f'{name}={value}')}" for name, value in message.properties.items()]
    try:
        return [*lines, "", "body", textwrap.indent(message.body.decode("utf-8", "backslashreplace"), "  ")]
    except Damaged as error:
        return [*lines, "", "body", f"  ({error})"]


def message_object(message: ReceivedMessage | FoundMessage) -> dict[str, Any]:
    """A message for machines."""
    return {
        "id": message.id,
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        **body_object(message),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "priority": message.priority,
        "lite_topic": message.lite_topic or None,
        "born_at": iso(message.born_at),
        "stored_at": iso(message.stored_at),
        "due_at": iso(message.due_at),
        "expires_at": iso(message.expires_at),
        "late_ms": message.late_ms,
        "level": message.delay_level,
        "attempt": message.attempt or None,
    }


def attempt_objects(attempts: Sequence[FailedAttempt]) -> list[dict[str, Any]]:
    """Failed attempts for machines."""
    return [
        {
            "attempt": one.attempt,
            "received_at": iso(one.received_at),
            "failed_at": iso(one.failed_at),
            "error_type": one.error_type,
            "error_message": one.error_message,
            "trace": one.trace,
        }
        for one in attempts
    ]


def body_object(message: ReceivedMessage | MessageView) -> dict[str, str]:
    """A body for machines."""
    try:
        body = message.body
    except Damaged as error:
        return {"body_error": error.text}
    return body_text(body)


def body_text(body: bytes) -> dict[str, str]:
    """A readable body for machines: as text, or else in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
