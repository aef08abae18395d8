"""The time of a shard with copies: the median of its members' clocks, so that no single clock makes a message early.

    reading of a member | its wall clock when it sent | + monotonic time since that arrived |

A reading is never ahead of its member's clock, since the way took time. With an even number of readings the lower one
of the middle two counts. Without readings of a majority the time stands still: nothing falls due.
"""

from collections.abc import Collection

from duetime_core.clock import Clock, DerivedClock

# Age at which a reading no longer counts.
READING_MS_MAX = 10_000
# Pause between two looks at the time while it stands still.
STILL_CHECK_MS = 50.0


class GroupClock(DerivedClock):
    """The wall clock of the group; all other functions are those of the member's own clock."""

    def __init__(self, clock: Clock, voters: Collection[int]) -> None:
        """`voters`: the members whose clocks count, the own one among them."""
        super().__init__(clock)
        self._voters = frozenset(voters)
        # The wall clocks of other members less the monotonic time, and the monotonic time of the reading.
        self._readings: dict[int, tuple[float, float]] = {}
        self._still_ms = 0

    def follow(self, voters: Collection[int]) -> None:
        """Counts the clocks of other members from now on."""
        self._voters = frozenset(voters)

    def heard(self, member: int, sent_at_ms: int) -> None:
        """Takes the reading of another member's wall clock."""
        monotonic_ms = self._machine.monotonic_ms()
        self._readings[member] = sent_at_ms - monotonic_ms, monotonic_ms

    def deviations(self) -> dict[int, float]:
        """How far each other member's clock is ahead of this one, in ms, by number; negative: behind."""
        own = self._machine.now_ms() - self._machine.monotonic_ms()
        return {member: offset - own for member, offset in self._fresh().items()}

    def _fresh(self) -> dict[int, float]:
        since_ms = self._machine.monotonic_ms() - READING_MS_MAX
        return {member: offset for member, (offset, read_ms) in [*self._readings.items()] if read_ms >= since_ms}

    def _ahead_ms(self) -> float | None:
        """How far the group's time is ahead of the own clock; None: no majority is known."""
        counted = [ahead for member, ahead in self.deviations().items() if member in self._voters]
        ahead = sorted([0.0, *counted])
        return ahead[(len(ahead) - 1) // 2] if 2 * len(ahead) > len(self._voters) else None

    def now_ms(self) -> int:
        if (ahead_ms := self._ahead_ms()) is not None:
            self._still_ms = int((self._machine.now_ms() + ahead_ms) // 1)
        return self._still_ms

    def ms_until(self, at_ms: int) -> float:
        ahead_ms = self._ahead_ms()
        if ahead_ms is None:
            return max(at_ms - self._still_ms, STILL_CHECK_MS) if at_ms > self._still_ms else at_ms - self._still_ms
        return self._machine.ms_until(at_ms) - ahead_ms
