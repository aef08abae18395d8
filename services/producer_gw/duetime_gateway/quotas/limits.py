"""What a quota may limit, as it is set and as it is stored. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from duetime_core.errors import Overloaded
from duetime_format.limits import BATCH_BYTES_MAX

USER, TOPIC = "user", "topic"
# Of callers without a name, where quota `*` counts each host as a user. No quota is set for one.
HOST = "host"
# The user whose quota is that of all users without one of their own.
EVERYBODY = "*"
QUOTAS_MAX = 1_000
QUOTA_MAX = 1 << 48
# A default burst holds at least what one request of the SDK has: a pack, or a batch.
BURST_MESSAGES_MIN, BURST_BYTES_MIN = 2_048, BATCH_BYTES_MAX


class Of(NamedTuple):
    """Whose quota."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class QuotasExhausted(Overloaded):
    """The limit of quotas is reached: only removing some helps."""

    reason = "QUOTAS_EXHAUSTED"
    retriable = False


@dataclass(frozen=True, slots=True)
class Limits:
    """See proto/duetime/v1/quotas.proto. 0: none."""

    messages_per_s: int = 0
    bytes_per_s: int = 0
    burst_messages: int = 0
    burst_bytes: int = 0
    connections: int = 0
    streams: int = 0
    pending_count: int = 0
    pending_bytes: int = 0
    per_host: bool = False

    @property
    def messages_at_once(self) -> int:
        return self.burst_messages or max(self.messages_per_s, BURST_MESSAGES_MIN)

    @property
    def bytes_at_once(self) -> int:
        return self.burst_bytes or max(self.bytes_per_s, BURST_BYTES_MIN)

    def text(self) -> str:
        """As the database has it."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


# The fields that only a user's quota has, and those that only a topic's has.
OF_USERS = ("connections", "streams", "per_host")
OF_TOPICS = ("pending_count", "pending_bytes")
FIELDS = tuple(one.name for one in fields(Limits))


def parse(text: str) -> Limits:
    """As `Limits.text` gave it; what a newer version has added is left out."""
    found: Mapping[str, Any] = json.loads(text)
    return Limits(**{name: value for name, value in found.items() if name in FIELDS})
