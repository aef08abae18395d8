"""The limits of one answer to a reader."""

from dataclasses import dataclass

from duetime_core.errors import Overloaded


@dataclass(slots=True)
class Budget:
    """The remaining limits of a scan, or of a pull over all its queues; the very first record may exceed them."""

    count: int
    size: int
    units: int
    taken: bool = False
    # The limit of the first record. 0: none.
    first_max: int = 0

    def check_first(self, size: int) -> None:
        """Checks the next record. Raises: Overloaded: it is the first, and exceeds its limit."""
        if not self.taken and 0 < self.first_max < size:
            text = f"the next message has {size} bytes; its reader has capacity for {self.first_max}"
            raise Overloaded(text, reason="ANSWERS_EXHAUSTED")
