"""A process started by a supervisor: it reports when it serves, and ends with the supervisor."""

import ctypes
import os
import signal

from duetime_core.errors import StartupError

# Set by a supervisor: the process prints one ready line, and ends with its parent.
SUPERVISED_VARIABLE = "DUETIME_SUPERVISED"
# Set by a supervisor: the process is a spare, which has loaded its modules and does nothing else before it has read a
# byte from its standard input.
SPARE_VARIABLE = "DUETIME_SPARE"
_PR_SET_PDEATHSIG = 1


def is_supervised() -> bool:
    return bool(os.environ.get(SUPERVISED_VARIABLE))


def await_turn() -> None:
    """Returns when the process is to start: at once, except for a spare.

    Raises:
        SystemExit: the supervisor has ended.
    """
    if not os.environ.get(SPARE_VARIABLE):
        return
    die_with_parent()
    if not os.read(0, 1):
        raise SystemExit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def die_with_parent() -> None:
    """Raises: StartupError: the supervisor has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        raise StartupError("the supervisor is gone")
