"""Log files of bounded size: each is cut when it is full, and one older part of it is kept.

The process that writes it goes on with the same open file, in append mode: so no process waits for this one, which may
be stopped at its terminal. What is written in the moment between the copy and the cut is lost.
"""

import shutil
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
# How often files are looked at.
CHECK_INTERVAL_S = 10.0
_CHUNK_BYTES = 1024 * 1024


def rotate(path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Moves what is in a log file to `NAME.1`, in whose place it comes, if that is more than `bytes_max`. Where the
    disk has no room for both, the older part is lost."""
    if not path.exists() or path.stat().st_size <= bytes_max:
        return False
    older = path.with_name(f"{path.name}.1")
    older.unlink(missing_ok=True)
    with path.open("r+b") as log:
        try:
            with older.open("xb") as copy:
                shutil.copyfileobj(log, copy, _CHUNK_BYTES)
        except OSError:
            older.unlink(missing_ok=True)
        log.truncate(0)
    return True
