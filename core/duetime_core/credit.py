"""Bytes that the reader of a stream has promised to take."""

from duetime_core.errors import InvalidArgument, Violation


class Credit:
    """What is left of a reader's credit, `bytes_max` at most. The last answer may use up more than that."""

    def __init__(self, bytes_max: int) -> None:
        self.left = 0
        self._bytes_max = bytes_max
        # The most that was ever left.
        self._most = 0

    def give(self, size: int) -> None:
        """The reader takes so many bytes more.

        Raises:
            InvalidArgument: none, or more than the limit.
        """
        if not 1 <= size <= self._bytes_max - self.left:
            text = f"{size} beside {max(self.left, 0)} that are left is not within 1 and {self._bytes_max}"
            raise InvalidArgument([Violation("credit_bytes", text)])
        self.left += size
        self._most = max(self._most, self.left)

    def spend(self, size: int) -> None:
        self.left -= size

    @property
    def answer_bytes(self) -> int:
        """How large the next answer may be; 0: there is no credit. It may be half of the most, however little is left:
        the rest is not worth an answer of its own."""
        return max(self.left, self._most // 2) if self.left > 0 else 0

    @property
    def is_low(self) -> bool:
        """Whether more than half of it is used up: a reader that keeps up gives more by then."""
        return self.left < self._most // 2
