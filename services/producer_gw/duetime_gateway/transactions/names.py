"""Names of transactions, which are opaque texts for their producers. Pure.

shard.offset.position.message id      decimal numbers; the message's id may hold dots itself
"""

from typing import NamedTuple

# A shard number, and two 64-bit ones, written out.
_DIGITS_MAX = (10, 19, 19)


class TransactionName(NamedTuple):
    """Where a half message was prepared, and the message's id, which shards compare with that of the record there."""

    shard: int
    # In the half topic.
    offset: int
    # In the log.
    position: int
    message_id: str


def text_of(name: TransactionName) -> str:
    """The transaction's id."""
    return f"{name[0]}.{name[1]}.{name[2]}.{name[3]}"


def parse(text: str) -> TransactionName | None:
    """None: it is none that `text_of` has made."""
    parts = text.split(".", 3)
    if len(parts) < 4 or not parts[3]:
        return None
    for digits, most in zip(parts, _DIGITS_MAX, strict=False):
        if not digits.isdecimal() or not digits.isascii() or len(digits) > most:
            return None
    return TransactionName(int(parts[0]), int(parts[1]), int(parts[2]), parts[3])
