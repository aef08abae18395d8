"""What came of making units of a queue again from the log."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Rebuilt:
    """What became of `count` units: indices of those whose offset has one already, and of those that it can't have."""

    count: int
    repeated: list[int] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
