"""Returns memory to the system after a peak: the C library keeps it fragmented."""

import asyncio
import ctypes

# A peak worth trimming the heap, which takes some ms for 100 MiB without blocking Python.
PEAK_BYTES = 32 * 1024 * 1024
PAUSE_MS = 1_000


class Heap:
    """Tracks the memory in use, and trims the heap after a peak, with a minimum pause."""

    def __init__(self) -> None:
        self._peak = 0
        self._trimmed_ms = 0.0
        # None if the C library has no such function (musl): nothing is trimmed.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    @property
    def is_grown(self) -> bool:
        """Whether there was a peak."""
        return self._peak >= PEAK_BYTES

    def note(self, used: int, now_ms: float) -> None:
        """Notes that `used` bytes are in use; trims on a thread once this is PEAK_BYTES below the peak."""
        self._peak = max(self._peak, used)
        if self._peak - used >= PEAK_BYTES and now_ms - self._trimmed_ms >= PAUSE_MS:
            self._peak, self._trimmed_ms = used, now_ms
            if self._trim is not None:
                asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
