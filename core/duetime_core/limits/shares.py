"""A limit shared by many callers: no caller can take all of it, and one that holds little can always take some. Pure.

0 ......................................... 9/10 ........ limit
|  callers below their share take from here   |  only callers that hold little take from here
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Callers with less than this part of a limit may use the last tenth too.
LITTLE = 100


class Shares(Generic[K]):
    """The amounts of a limited quantity held by callers.

    Args:
        limit: the most that all hold together.
        share: the most for one caller; None: half of the limit.
        little: callers with less than this may use the last tenth too; None: a hundredth of the limit.
    """

    def __init__(self, limit: int, share: int | None = None, little: int | None = None) -> None:
        self.used = 0
        # Number of rejections.
        self.refused_count = 0
        self._held: dict[K, int] = {}
        self.bound(limit, share, little)

    def bound(self, limit: int, share: int | None = None, little: int | None = None) -> None:
        """Sets the limits, possibly below the amounts held now."""
        self.limit = limit
        self.share = -(-limit // 2) if share is None else min(share, limit)
        self.little = min(max(limit // LITTLE, 1) if little is None else little, self.share)
        self._reserve = limit // 10

    def held(self, key: K) -> int:
        return self._held.get(key, 0)

    def room(self, key: K) -> int:
        """The amount that the caller may still take."""
        own, free = self._held.get(key, 0), self.limit - self.used
        return max(0, min(free - self._reserve, self.share - own), min(free, self.little - own))

    def may_take(self, key: K, amount: int = 1) -> bool:
        """Whether the caller may take this amount; counts a rejection."""
        fits = self._fits(key, amount)
        self.refused_count += not fits
        return fits

    def _fits(self, key: K, amount: int) -> bool:
        free = self.limit - self.used - self._reserve
        # Nearly always decided here.
        return (amount <= free and amount <= self.share - self._held.get(key, 0)) or amount <= self.room(key)

    def take(self, key: K, amount: int = 1) -> None:
        """Adds to the caller's amount; may exceed the limit, for amounts that already exist."""
        self.used += amount
        self._held[key] = self._held.get(key, 0) + amount

    def give(self, key: K, amount: int = 1) -> None:
        """Subtracts from the caller's amount."""
        self.used -= amount
        left = self._held.pop(key, 0) - amount
        if left:
            self._held[key] = left

    def room_within(self, left: int, of: int, key: K) -> int:
        """How much of its owner's share, of which `left` of `of` are left, the caller may take: the last tenth of that
        share is for callers with little."""
        own = self.held(key)
        return max(0, min(left - of // 10, self.share - own), min(left, self.little - own))

    def holders(self) -> list[K]:
        """Callers with any amount, the highest first."""
        return sorted(self._held, key=lambda key: -self._held[key])
