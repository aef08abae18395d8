"""Log files of bounded size: each is copied and truncated when it is full, and one copy is kept.

The writing process keeps its file open in append mode. It never waits for this one, which may be suspended at its
terminal. Lines written between the copy and the truncation are lost.
"""

import shutil
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
# Interval of the checks.
CHECK_INTERVAL_S = 10.0
_CHUNK_BYTES = 1024 * 1024


def rotate(path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Moves the content of a log file above `bytes_max` to `NAME.1`, replacing that; returns whether it did. If the
    disk is full, the content is lost."""
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
