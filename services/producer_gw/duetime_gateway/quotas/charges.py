"""Charges of calls that store data besides sent messages: the form of each protocol's table of methods."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from duetime_core.rpc.decoding import decode

from duetime_gateway.quotas.quotas import CopyCharge, Quotas, Settle


class UnchargedMethod(Enum):
    """Methods without a charge."""

    # Reads, or changes no log.
    STORES_NOTHING = "stores nothing"
    # Sends: `Sender` counts the messages once they are decoded or packed.
    SENDS = "sends"


def _none(_: Any) -> Sequence[Any]:
    return ()


@dataclass(frozen=True, slots=True)
class Charge:
    """The records of a call. Without copies: an event, or a small record."""

    # Copies of a request.
    copies: Callable[[Any], Sequence[CopyCharge]] = _none
    # Sizes of the stored bodies according to an answer, one for each copy, or for a part of a stream.
    stored: Callable[[Any], Sequence[int]] = _none
    # Decode requests and answers of methods that use bytes.
    read: Callable[[bytes], Any] | None = None
    read_answer: Callable[[bytes], Any] | None = None

    @contextmanager
    def counted(self, quotas: Quotas, user: str, peer: str, request: Any) -> Iterator[Settle]:
        """Counts a request while it is served. Yields a function for the sizes of stored bodies.

        Raises: QuotaExceeded.
        """
        asked = request if self.read is None else decode(self.read, request)
        settle, stored = quotas.store(user, peer, size_of(request), self.copies(asked)), list[int]()
        try:
            yield stored.extend
        finally:
            settle(stored)

    def stored_by(self, answer: Any) -> Sequence[int]:
        """As `stored`, for an answer in the method's own form."""
        return self.stored(answer if self.read_answer is None else self.read_answer(answer))


Rate = Charge | UnchargedMethod
STORES_NOTHING, SENDS = UnchargedMethod.STORES_NOTHING, UnchargedMethod.SENDS
# An event, or a small record.
RECORD = Charge()
# A topic or a group, counted as a message without a body.
MADE = Charge(copies=lambda _: (CopyCharge(given=0),))


def size_of(message: Any) -> int:
    """Size of a request as received."""
    return len(message) if isinstance(message, bytes) else int(message.ByteSize())
