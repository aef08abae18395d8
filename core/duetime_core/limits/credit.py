"""Credit of a stream's reader: bytes that it has promised to accept."""

from duetime_core.errors import InvalidArgument, Violation


class Credit:
    """A reader's remaining credit, at most `bytes_max`. The last answer may exceed it."""

    def __init__(self, bytes_max: int) -> None:
        self.left = 0
        self._bytes_max = bytes_max
        # Highest credit so far.
        self._most = 0

    def give(self, size: int) -> None:
        """Adds credit.

        Raises:
            InvalidArgument: zero, or more than the limit.
        """
        if not 1 <= size <= self._bytes_max - self.left:
            text = f"{size} plus the remaining {max(self.left, 0)} is not within 1 and {self._bytes_max}"
            raise InvalidArgument([Violation("credit_bytes", text)])
        self.left += size
        self._most = max(self._most, self.left)

    def spend(self, size: int) -> None:
        self.left -= size

    @property
    def answer_bytes(self) -> int:
        """Largest size of the next answer; 0: no credit. At least half of the highest credit, even if little is left:
        the rest is not worth a separate answer."""
        return max(self.left, self._most // 2) if self.left > 0 else 0

    @property
    def is_low(self) -> bool:
        """Whether more than half is used up: a reader that keeps up has given more by then."""
        return self.left < self._most // 2
