"""Names of transactions, which are opaque texts for their producers. Pure.

shard.offset.position.message id      decimal numbers; the message's id may hold dots itself
"""

import re
from typing import NamedTuple

from duetime_gateway.rules import INT64_MAX

_NAME = re.compile(r"([0-9]{1,10})\.([0-9]{1,19})\.([0-9]{1,19})\.(.+)", re.DOTALL)


class TransactionName(NamedTuple):
    """The place of a half message, and the message's id; shards compare the id with the record's."""

    shard: int
    # Offset in the half topic.
    offset: int
    # Position in the log.
    position: int
    message_id: str


def text_of(name: TransactionName) -> str:
    """The transaction's id."""
    return f"{name[0]}.{name[1]}.{name[2]}.{name[3]}"


def parse(text: str) -> TransactionName | None:
    """Parses a transaction's id; None: not made by `text_of`."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    shard, offset, position = map(int, found.groups()[:3])
    if max(shard, offset, position) > INT64_MAX:
        return None
    return TransactionName(shard, offset, position, found[4])
