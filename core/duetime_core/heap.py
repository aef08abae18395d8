"""Gives memory back to the system after a peak, since the C library keeps it in pieces."""

import asyncio
import ctypes

# A peak worth the walk over the heap, which takes some ms for 100 MiB and holds up no Python.
PEAK_BYTES = 32 * 1024 * 1024
PAUSE_MS = 1_000


class Heap:
    """Takes note of how much is in use, and trims the heap after a peak, once in a while."""

    def __init__(self) -> None:
        self._peak = 0
        self._trimmed_ms = 0.0
        # None where the C library has no such call (musl): nothing is trimmed.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    @property
    def is_grown(self) -> bool:
        """Whether there is a peak to come down from."""
        return self._peak >= PEAK_BYTES

    def note(self, used: int, now_ms: float) -> None:
        """Notes that `used` bytes are in use; trims on a thread once they are PEAK_BYTES below the peak."""
        self._peak = max(self._peak, used)
        if self._peak - used >= PEAK_BYTES and now_ms - self._trimmed_ms >= PAUSE_MS:
            self._peak, self._trimmed_ms = used, now_ms
            if self._trim is not None:
                asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
