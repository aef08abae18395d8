"""The standard error of a JVM and its Python workers, without the noise of every start and end. Pure.

An idle worker finds the session's socket closed, tries to report that through the socket, and prints a traceback of the
failure above a correct result:

    Traceback (most recent call last):
      File "…/pyspark/daemon.py", line 264, in manager
      File "…/pyspark/daemon.py", line 95, in worker
    BrokenPipeError: [Errno 32] Broken pipe

So does a worker with rows no longer needed. The JVM forwards workers' output in pieces of a kilobyte, so lines of
several workers, and parts of lines, are mixed. From the first line of a traceback on, text is held for HOLD_S; then the
rest without these lines is forwarded, or everything if the lines are not whole tracebacks.
"""

import re

# Printed by a JVM and spark-submit at each start, at any log level.
_NOISE = (b"WARNING: Using incubator modules", b"Setting default log level to", b"To adjust logging level use")
_HEADER = b"Traceback (most recent call last):\n"
_ENDINGS = (
    b"BrokenPipeError: [Errno 32] Broken pipe\n",
    b"ConnectionResetError: [Errno 104] Connection reset by peer\n",
)
# A frame of the daemon, with its line of code if Python finds it.
_FRAME = (
    rb'  File "[^"\n]*/pyspark/daemon\.py", line \d+, in (?:manager|worker)\n'
    rb"(?:    (?:code = worker\(sock, authenticated\)|outfile\.flush\(\))\n)?(?:    [\^~ ]+\n)?"
)
_LINES = re.compile(b"|".join((re.escape(_HEADER), _FRAME, *map(re.escape, _ENDINGS))))

# Longer than the arrival of one worker's output, on a busy machine too.
HOLD_S = 1.0
HELD_BYTES_MAX = 1024 * 1024


class Sieve:
    """Takes pieces of text in order; returns the text to forward."""

    def __init__(self) -> None:
        self._held = b""
        self._since_s: float | None = None

    @property
    def until_s(self) -> float | None:
        """Latest time to forward held text; None: no text is held."""
        return None if self._since_s is None else self._since_s + HOLD_S

    def take(self, piece: bytes, now_s: float) -> bytes:
        """The text to forward after a new piece, or, with an empty piece, after some time."""
        self._held += piece
        passed = b""
        if self._since_s is None:
            passed, self._held = _before_traceback(self._held)
            self._since_s = now_s if _HEADER in self._held else None
        if self._since_s is not None and (whole := _without_tracebacks(self._held)) is not None:
            self._held, self._since_s = b"", None
            return passed + self.take(whole, now_s)
        if self._since_s is not None and (now_s >= self._since_s + HOLD_S or len(self._held) > HELD_BYTES_MAX):
            return passed + self.rest()
        return passed

    def rest(self) -> bytes:
        """The held text, at the end."""
        held, self._held, self._since_s = self._held, b"", None
        return _without_noise(held)


def _before_traceback(text: bytes) -> tuple[bytes, bytes]:
    """Whole lines up to the first traceback, without noise, and the rest."""
    at = text.find(_HEADER)
    end = text.rfind(b"\n", 0, at if at >= 0 else len(text)) + 1
    return _without_noise(text[:end]), text[end:]


def _without_tracebacks(text: bytes) -> bytes | None:
    """The text without the tracebacks of idle workers; None: it has other tracebacks, or part of one."""
    headers = endings = 0
    while found := list(_LINES.finditer(text)):
        # The removal may join the pieces of a line that other lines had separated.
        headers += sum(match[0] == _HEADER for match in found)
        endings += sum(match[0] in _ENDINGS for match in found)
        text = _LINES.sub(b"", text)
    is_whole = headers == endings and b'\n  File "' not in b"\n" + text
    return text if is_whole and (not text or text.endswith(b"\n")) else None


def _without_noise(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(_NOISE))
