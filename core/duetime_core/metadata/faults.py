"""Classifies a driver's error: a fault of the metadata database, or a defect of the statement. Pure.

A fault passes, or an operator ends it; callers get UNAVAILABLE and may retry. A defect is this code's: a row that
violates a constraint, or an invalid statement.
"""

from enum import StrEnum

from sqlalchemy.exc import (
    DatabaseError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InterfaceError,
    InvalidRequestError,
    OperationalError,
)
from sqlalchemy.exc import InternalError as DatabaseInternalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

WORDS_CHARS_MAX = 300


class Fault(StrEnum):
    """Kinds of faults; the value is a label of a metric."""

    AWAY = "away"
    READ_ONLY = "read_only"
    REFUSED = "refused"
    SCHEMA = "schema"
    DAMAGED = "damaged"
    FULL = "full"
    # Others write the same rows: passes at once, no operator needed.
    BUSY = "busy"


SENTENCES = {
    Fault.AWAY: "metadata database does not answer",
    Fault.READ_ONLY: "metadata database is read-only",
    Fault.REFUSED: "metadata database rejects this process",
    Fault.SCHEMA: "metadata database lacks this version's schema",
    Fault.DAMAGED: "metadata database is damaged",
    Fault.FULL: "metadata database is out of space",
    Fault.BUSY: "metadata database is busy",
}

# serialization_failure, deadlock_detected, lock_not_available; unique_violation: two inserted the same missing row.
CONFLICTS = {"40001", "40P01", "55P03", "23505"}

# Source: PostgreSQL 16, appendix A, error codes. The first matching prefix of the SQLSTATE counts.
_OF_SQLSTATE = (
    ("08", Fault.AWAY),  # connection exception
    ("25006", Fault.READ_ONLY),  # a standby, or default_transaction_read_only
    ("25P0", Fault.AWAY),  # the session idled too long, and was ended
    ("28", Fault.REFUSED),  # authorization
    ("3D000", Fault.REFUSED),  # no such database
    ("3F000", Fault.SCHEMA),
    ("40", Fault.BUSY),
    ("42501", Fault.REFUSED),  # insufficient privilege
    ("42P01", Fault.SCHEMA),  # no such table
    ("42703", Fault.SCHEMA),  # no such column
    ("42704", Fault.SCHEMA),
    ("53100", Fault.FULL),
    ("53", Fault.AWAY),  # too many connections, out of memory
    ("54", Fault.AWAY),
    ("55P03", Fault.BUSY),
    ("55", Fault.REFUSED),
    ("57", Fault.AWAY),  # shutdown, starting up, a statement that took too long
    ("58", Fault.DAMAGED),  # I/O error
    ("F0", Fault.AWAY),
    ("XX", Fault.DAMAGED),
)
# Source: sqlite3.h, primary result codes.
_OF_SQLITE = {
    3: Fault.REFUSED,
    5: Fault.BUSY,
    6: Fault.BUSY,
    7: Fault.AWAY,
    8: Fault.READ_ONLY,
    9: Fault.AWAY,
    10: Fault.AWAY,
    11: Fault.DAMAGED,
    13: Fault.FULL,
    14: Fault.AWAY,
    15: Fault.AWAY,
    22: Fault.FULL,
    23: Fault.REFUSED,
    26: Fault.DAMAGED,
}
# A server that rejects a connection gives the reason only as text.
_REFUSALS = ("authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied")


def sqlstate_of(error: BaseException) -> str:
    """Empty if there is none, as for a lost connection or SQLite."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def is_conflict(error: BaseException) -> bool:
    """Whether the same transaction may succeed at once. SQLite's writers wait for each other in the driver; remaining
    failures are outages."""
    return sqlstate_of(error) in CONFLICTS


def fault_of(error: BaseException) -> Fault | None:
    """The fault; None: a defect of the caller."""
    if isinstance(error, PoolTimeoutError | DisconnectionError) or _is_closed(error):
        return Fault.AWAY
    if not isinstance(error, DBAPIError):
        return None
    if is_conflict(error):
        return Fault.BUSY
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return _of_sqlite(code & 0xFF, str(error.orig))
    sqlstate = sqlstate_of(error)
    if sqlstate:
        return next((fault for start, fault in _OF_SQLSTATE if sqlstate.startswith(start)), None)
    return _of_class(error)


def _is_closed(error: BaseException) -> bool:
    """Whether the pool gave up because connections broke as they were taken."""
    return type(error) is InvalidRequestError and "connection is closed" in str(error)


def _of_sqlite(code: int, words: str) -> Fault | None:
    if code == 1 and "no such" in words:
        return Fault.SCHEMA
    return _OF_SQLITE.get(code)


def _of_class(error: DBAPIError) -> Fault | None:
    """The fault of an error without a code: the connection broke or failed, or the driver misread."""
    if isinstance(error, IntegrityError):
        return None
    if isinstance(error, OperationalError) and any(words in str(error.orig) for words in _REFUSALS):
        return Fault.REFUSED
    if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated:
        return Fault.AWAY
    if isinstance(error, DatabaseInternalError):
        return Fault.DAMAGED
    # The driver raises the base class for an interrupted answer.
    return Fault.AWAY if type(error) is DatabaseError else None


def reason_of(error: BaseException) -> str:
    """The driver's text on one line: for an error in a statement its first line, since the others repeat the statement;
    for SQLAlchemy's own errors without the link at the end."""
    words = str(getattr(error, "orig", None) or error).partition("(Background on this")[0]
    if sqlstate_of(error):
        words = words.partition("\n")[0]
    return " ".join(words.split())[:WORDS_CHARS_MAX]
