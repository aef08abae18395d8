"""The input of the sender: messages to send, and their caller.

A face (the part of the gateway for one protocol) supplies a `Request`. If it has a compiled packer from its own bytes
to records, the sender uses that; otherwise it reads the drafts one by one. This module is independent of protocols.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from duetime_core.access.callers import host_of, sharer_of
from duetime_core.errors import Violation
from duetime_format.admission import Draft
from duetime_format.levels import DelayLevels

from duetime_gateway.access.grants import EVERYTHING, Access
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.shards.route import Route


class Drafts(Protocol):
    """The drafts of one request, in order. A face may create each one only on access."""

    @property
    def in_runs(self) -> bool:
        """Whether they take queues in runs (Route.goes_on), so that a few ranges describe their queues."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Draft: ...

    def topics(self) -> Collection[str]:
        """The distinct topics of all drafts."""


@dataclass(frozen=True, slots=True)
class DraftList:
    """Existing drafts."""

    drafts: Sequence[Draft]
    in_runs: bool = False

    def __len__(self) -> int:
        return len(self.drafts)

    def __getitem__(self, index: int, /) -> Draft:
        return self.drafts[index]

    def topics(self) -> Collection[str]:
        return {draft.topic for draft in self.drafts}


class WholeDrafts(Drafts, Protocol):
    """The drafts of a batch, with the violations of the batch as a whole."""

    def violations(self, *, is_lite: bool) -> Iterable[Violation]:
        """By index: `messages[3].topic`. `is_lite`: the topic has lite topics."""


class PackedRequest(Protocol):
    """A whole request as records. All messages are valid and have queues, and their shards are ready.

    It keeps the data for its answer, so no object per message is created.
    """

    @property
    def count(self) -> int:
        """The number of messages."""

    @property
    def is_half(self) -> bool:
        """Whether the records are half messages."""

    @property
    def parts(self) -> list[tuple[int, int]]:
        """(shard, record count) of each part, at most one put each; parts of one shard are in order."""

    def records(self, part: int) -> bytes:
        """The records of a part, concatenated."""

    def response(self, answers: list[tuple[Sequence[int], Sequence[int], Sequence[int]]]) -> bytes:
        """The encoded answer in the face's protocol, if all is stored. `answers`: (queue offsets, due times or nothing,
        log positions of half messages) of each part."""

    def columns(self) -> tuple[list[str], list[int], list[int], list[int], list[int]]:
        """(ids, queues, levels, lanes, part of each message), for a request that was not fully stored."""

    def costs(self) -> dict[str, tuple[int, int, int, int]]:
        """By topic: messages and bytes of their bodies; then the delayed part of both."""


@dataclass(frozen=True, slots=True)
class EncodingRules:
    """The settings for packing and encoding every request."""

    levels: DelayLevels
    ids: MessageIds
    body_bytes_min: int = 0


class Request(Protocol):
    """One request in its face's form."""

    @property
    def size(self) -> int:
        """Size of the request as received."""

    @property
    def is_batch(self) -> bool:
        """Whether all messages go to one queue and are stored all or none; its drafts are then `WholeDrafts`."""

    def pack(
        self, rules: EncodingRules, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes
    ) -> PackedRequest | None:
        """Packs the whole request as records; None: it must be encoded draft by draft. May be tried again."""

    def drafts(self) -> Drafts:
        """Returns `WholeDrafts` for a batch. Raises: InvalidArgument: the bytes are not a request."""


class HalfRequest(Request, Protocol):
    """One request to prepare transactions."""

    def transactions(self) -> tuple[str, int]:
        """The producer's group, and the seconds without checks; 0: the shard's timeout. Called after `drafts`."""


class Caller(NamedTuple):
    """The caller of a request."""

    # One per connection.
    peer: str
    # Address and port as stored in records, 8 or 20 bytes.
    host: bytes
    # Time until the caller's deadline; None: no deadline.
    remaining_ms: float | None
    access: Access = EVERYTHING
    # User name; empty: users are off.
    user: str = ""

    @property
    def sharer(self) -> str:
        """The key under which limits shared by callers count this caller."""
        return sharer_of(self.user, host_of(self.peer))
