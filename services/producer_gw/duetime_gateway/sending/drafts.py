"""What a face hands to the sender: messages to be sent, and who sends them.

A face (the part of the gateway that speaks one protocol) gives a `Request`. The sender first lets it be packed, where
the face has a compiled way from its own bytes to records; otherwise it reads the drafts one by one. Nothing here knows
the protocol that a message came by.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from duetime_core.callers import host_of, sharer_of
from duetime_core.errors import Violation
from duetime_format.admission import Draft
from duetime_format.levels import DelayLevels

from duetime_gateway.access.grants import EVERYTHING, Access
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.shards.route import Route


class Drafts(Protocol):
    """The drafts of one request, in its order. A face may make each one only when it is asked for."""

    @property
    def is_retry(self) -> bool:
        """Whether the request repeats one whose answer was lost."""

    @property
    def in_runs(self) -> bool:
        """Whether they take queues in runs (Route.goes_on), so that a few ranges tell where they are."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Draft: ...

    def topics(self) -> Collection[str]:
        """The distinct topics of all drafts."""


@dataclass(frozen=True, slots=True)
class DraftList:
    """Drafts that exist already."""

    drafts: Sequence[Draft]
    is_retry: bool = False
    in_runs: bool = False

    def __len__(self) -> int:
        return len(self.drafts)

    def __getitem__(self, index: int, /) -> Draft:
        return self.drafts[index]

    def topics(self) -> Collection[str]:
        return {draft.topic for draft in self.drafts}


class WholeDrafts(Drafts, Protocol):
    """The drafts of a batch, with what is wrong with them beside what is wrong with each alone."""

    def violations(self) -> Iterable[Violation]:
        """By index: `messages[3].topic`."""


class Packed(Protocol):
    """A whole request as records: all of its messages are right, have queues, and their shards are ready.

    It keeps what its answer needs, so that no object per message exists on the way.
    """

    @property
    def count(self) -> int:
        """How many messages."""

    @property
    def is_retry(self) -> bool:
        """Whether it repeats a request whose answer was lost."""

    @property
    def is_half(self) -> bool:
        """Whether the records are half messages."""

    @property
    def parts(self) -> list[tuple[int, int]]:
        """(shard, how many records) of each part, which is one put at most; those of one shard are in order."""

    def records(self, part: int) -> bytes:
        """Those of a part, back to back."""

    def response(self, answers: list[tuple[Sequence[int], Sequence[int], Sequence[int]]]) -> bytes:
        """The answer in the face's protocol, encoded, from (queue offsets, due times or nothing, log positions of half
        messages) of each part, all of it stored."""

    def columns(self) -> tuple[list[str], list[int], list[int], list[int], list[int]]:
        """(ids, queues, levels, lanes, which part each message is in), where not all of it is stored."""

    def costs(self) -> dict[str, tuple[int, int, int, int]]:
        """By topic: how many messages and bytes of bodies; and of these, what is delayed."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What every request is packed and encoded by."""

    levels: DelayLevels
    ids: MessageIds
    body_bytes_min: int = 0


class Request(Protocol):
    """One request as its face holds it."""

    @property
    def size(self) -> int:
        """Bytes, as they came."""

    @property
    def is_batch(self) -> bool:
        """Whether its messages are stored all or none, in one queue; then its drafts are `WholeDrafts`."""

    def pack(self, rules: Rules, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes) -> Packed | None:
        """All of it as records; None: that takes a closer look, draft by draft. May be tried again."""

    def drafts(self) -> Drafts:
        """`WholeDrafts` of a batch. Raises: InvalidArgument: the bytes are no request."""


class HalfRequest(Request, Protocol):
    """One request to prepare transactions."""

    def transactions(self) -> tuple[str, int]:
        """The group of their producer, and how many seconds they are not checked; 0: as long as their shard's timeout.
        Asked after `drafts`."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request of drafts that exist already, for faces without a compiled packer."""

    given: Drafts
    size: int
    is_batch: bool = False

    def pack(self, rules: Rules, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes) -> None:
        return None

    def drafts(self) -> Drafts:
        return self.given


class Caller(NamedTuple):
    """Who sends a request."""

    # One for each connection.
    peer: str
    # Address and port as records carry them, 8 or 20 bytes.
    host: bytes
    # Until the caller's deadline; None: it has none.
    remaining_ms: float | None
    access: Access = EVERYTHING
    # Who it is; empty: callers are not asked.
    user: str = ""

    @property
    def sharer(self) -> str:
        """Whom limits that callers share are counted for."""
        return sharer_of(self.user, host_of(self.peer))
