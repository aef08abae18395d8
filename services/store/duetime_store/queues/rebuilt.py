"""The result of rebuilding units of a queue from the log."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Rebuilt:
    """The result for `count` units: indices of those whose offset has one already, and of those that can't be right."""

    count: int
    repeated: list[int] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
