"""The report of verify: damage with its place and message, and notes on findings that are not damage."""

from dataclasses import asdict, dataclass, field
from typing import Any

from duetime_shard.brokers.engines import Loss

# Maximum damages named one by one; all are counted.
NAMED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """The message that a place belongs to, as far as it is known; `id` is its UNIQ_KEY, else the broker's id."""

    topic: str | None = None
    queueId: int | None = None  # noqa: N815 - RocketMQ's names, as in all that is printed
    queueOffset: int | None = None  # noqa: N815
    id: str | None = None

    def __str__(self) -> str:
        if self.topic is None:
            return ""
        place = f"{self.topic} queue {self.queueId} offset {self.queueOffset}"
        return f" ({place}, id {self.id})" if self.id else f" ({place})"


NONE = DamagedMessage()


@dataclass(frozen=True, slots=True)
class FileDamage:
    """`position` is a byte of `file`, whose path is relative to the directory."""

    file: str
    position: int
    what: str
    message: DamagedMessage = NONE

    def __str__(self) -> str:
        return f"{self.file} at {self.position}: {self.what}{self.message}"

    def as_json(self) -> dict[str, Any]:
        return {"file": self.file, "position": self.position, "what": self.what, **asdict(self.message)}


@dataclass(slots=True)
class VerifyReport:
    """The outcome of a verification."""

    damages: list[FileDamage] = field(default_factory=list)
    damage_count: int = 0
    notes: list[str] = field(default_factory=list)
    # State of a broker that an import does without.
    losses: list[Loss] = field(default_factory=list)
    records: int = 0
    record_bytes: int = 0
    units: int = 0
    index_entries: int = 0
    # Schedules with a pending occurrence, and the paused ones among them.
    schedules: int = 0
    paused_schedules: int = 0

    def add(self, file: str, position: int, what: str, message: DamagedMessage = NONE) -> None:
        self.damage_count += 1
        if len(self.damages) < NAMED_MAX:
            self.damages.append(FileDamage(file, position, what, message))

    @property
    def is_sound(self) -> bool:
        return not self.damage_count

    def as_json(self) -> dict[str, Any]:
        return {
            "sound": self.is_sound,
            "damageCount": self.damage_count,
            "damages": [damage.as_json() for damage in self.damages],
            "notes": self.notes,
            "losses": [loss._asdict() for loss in self.losses],
            "records": self.records,
            "recordBytes": self.record_bytes,
            "units": self.units,
            "indexEntries": self.index_entries,
            "schedules": self.schedules,
            "pausedSchedules": self.paused_schedules,
        }
