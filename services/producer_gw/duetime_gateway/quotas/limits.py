"""The limits of a quota, as set and as stored. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from duetime_core.errors import Overloaded
from duetime_format.limits import BATCH_BYTES_MAX

USER, TOPIC = "user", "topic"
# Unnamed callers: quota `*` counts each host as a user. No quota can be set for a host.
HOST = "host"
# Owner of the quota that applies to all users without one of their own.
EVERYBODY = "*"
QUOTAS_MAX = 1_000
QUOTA_MAX = 1 << 48
# A default burst holds at least one request of the SDK: a pack or a batch.
BURST_MESSAGES_MIN, BURST_BYTES_MIN = 2_048, BATCH_BYTES_MAX


class QuotaOwner(NamedTuple):
    """The owner of a quota."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class QuotasExhausted(Overloaded):
    """The number of quotas is at its limit: remove some."""

    reason = "QUOTAS_EXHAUSTED"
    retriable = False


@dataclass(frozen=True, slots=True)
class Limits:
    """See proto/duetime/v1/quotas.proto. 0: no limit."""

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
        """The database's form."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


# Fields only for users' quotas, and fields only for topics' quotas.
OF_USERS = ("connections", "streams", "per_host")
OF_TOPICS = ("pending_count", "pending_bytes")
FIELDS = tuple(one.name for one in fields(Limits))


def parse(text: str) -> Limits:
    """Inverse of `Limits.text`; additions of newer versions are ignored."""
    found: Mapping[str, Any] = json.loads(text)
    return Limits(**{name: value for name, value in found.items() if name in FIELDS})
