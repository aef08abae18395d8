"""A process that a supervisor started: it tells when it serves, and does not outlive who started it."""

import ctypes
import os
import signal

from duetime_core.errors import StartupError

# Set by a supervisor: the process ends when its parent does, and prints one ready line for it.
SUPERVISED_VARIABLE = "DUETIME_SUPERVISED"
_PR_SET_PDEATHSIG = 1


def is_supervised() -> bool:
    return bool(os.environ.get(SUPERVISED_VARIABLE))


def die_with_parent() -> None:
    """Raises: StartupError: it is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        raise StartupError("the supervisor is gone")
