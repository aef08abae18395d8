r"""The due time of a record for any time, a broker's or ours. Pure bytes.

    ... TIMER_DELAY_MS 0x01 5000 0x02 ... TIMER_OUT_MS 0x01 13 digits 0x02 REAL_TOPIC 0x01 orders 0x02 REAL_QID 0x01 3

TIMER_OUT_MS (`out`) is the last ms before the message falls due, to the precision of its writer: the store's is 1 ms, a
broker's 100 ms to 1 s. The requested time determines the ms within that:

    asked = store time + 1000 * TIMER_DELAY_SEC, else store time + TIMER_DELAY_MS, else TIMER_DELIVER_MS
    due   = asked, but within out + 1 and out + 1000; out + 1000 without a readable request

So a broker's message falls due no earlier than requested, and no later than the broker fires it, even if it was stored
a second time (a roll, which does not restart a delay). Without a readable `out` the message is due at the requested
time, else at once.

Numbers are read like Java's Long.parseLong; a number rejected by it counts as missing.

Source: RocketMQ 5.x HookUtils.transformTimerMessage, TimerMessageStore.
"""

import re

import numpy as np

from duetime_format import record
from duetime_format.columns import RecordRun
from duetime_format.compiled import twin
from duetime_format.properties import value_of
from duetime_format.record import Record
from duetime_format.units import DUE_MS_LIMIT, Ints, Mask

_twin = twin("duetime_format._timers")

# Larger times and lengths count as this one, so that no sum leaves an i64.
MS_MAX = DUE_MS_LIMIT - 2_000
PRECISION_MS_MAX = 1_000
# Maximum for new records: the last due time whose preceding ms has 13 digits.
DUE_PLACED_MS_MAX: int = 10**record.TIMER_OUT_DIGITS
_I64_MIN, _I64_MAX = -(1 << 63), (1 << 63) - 1
_LONG = re.compile(rb"([+-]?)0*([0-9]{1,19})")
_OUT, _SEC, _MS, _DELIVER = (
    name.encode()
    for name in (record.TIMER_OUT_MS, record.TIMER_DELAY_SEC, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS)
)
_POWERS = 10 ** np.arange(record.TIMER_OUT_DIGITS - 1, -1, -1)


def due_at_ms(found: Record) -> int:
    """The due time of a pending record of TIMER_TOPIC: 0 to DUE_MS_LIMIT - 1."""
    return due_by(found.properties, found.stored_at_ms)


def due_by(properties: bytes, stored_at_ms: int) -> int:
    """As `due_at_ms`."""
    stored_at_ms = min(max(stored_at_ms, 0), MS_MAX)
    out, asked = java_long(value_of(properties, _OUT)), _asked(properties, stored_at_ms)
    if out is None:
        return stored_at_ms if asked is None else _bounded(asked)
    out = _bounded(out)
    return out + PRECISION_MS_MAX if asked is None else min(max(asked, out + 1), out + PRECISION_MS_MAX)


def _asked(properties: bytes, stored_at_ms: int) -> int | None:
    for name, scale in ((_SEC, 1_000), (_MS, 1)):
        delay = java_long(value_of(properties, name))
        if delay is not None:
            return stored_at_ms + delay * scale
    return java_long(value_of(properties, _DELIVER))


def _bounded(at_ms: int) -> int:
    return min(max(at_ms, 0), MS_MAX)


def java_long(text: bytes) -> int | None:
    """The number as Java's Long.parseLong reads ASCII; None: it rejects the text."""
    found = _LONG.fullmatch(text)
    if found is None:
        return None
    value = int(found[1] + found[2])
    return value if _I64_MIN <= value <= _I64_MAX else None


def dues(run: RecordRun, indices: Ints) -> Ints:
    """The due times of the records at `indices`, all of TIMER_TOPIC."""
    if _twin is not None:
        return np.frombuffer(_twin.dues(run.data, run.columns, np.ascontiguousarray(indices, np.int64)), np.int64)
    stored_at_ms = run.stored_at_ms[indices].tolist()
    rows = zip(indices.tolist(), stored_at_ms, strict=True)
    return np.array([due_by(run.properties(index), at_ms) for index, at_ms in rows], np.int64)


def agree(run: RecordRun, indices: Ints) -> Mask:
    """Whether the unstored records of TIMER_TOPIC at `indices` ask for the time in TIMER_OUT_MS: only those fall due at
    the time that the store answers."""
    if _twin is not None:
        found = _twin.agree(run.data, run.columns, np.ascontiguousarray(indices, np.int64))
        agreeing: Mask = np.frombuffer(found, np.int64) != 0
        return agreeing
    return np.array([agrees(run.properties(index)) for index in indices.tolist()], np.bool_)


def agrees(properties: bytes) -> bool:
    """See `agree`: TIMER_OUT_MS agrees with a delay at most as long, or with a TIMER_DELIVER_MS at most as late."""
    out, seconds, delay, deliver = (java_long(value_of(properties, name)) for name in (_OUT, _SEC, _MS, _DELIVER))
    if out is None:
        return False
    if out >= record.TIMER_OUT_MIN:
        return seconds is None and delay is None and deliver is not None and deliver - 1 <= out
    if seconds is not None:
        return seconds * 1_000 <= max(out, 1)
    return delay is not None and delay <= max(out, 1)


def outs(run: RecordRun, indices: Ints) -> Ints:
    """Senders' values of TIMER_OUT_MS, a delay or the last ms before a time, in records with its 13 digits
    (`RecordRun.timer_at`)."""
    digits = np.frombuffer(run.data, np.uint8)[run.timer_at[indices][:, None] + np.arange(len(_POWERS))]
    values: Ints = (digits.astype(np.int64) - ord("0")) @ _POWERS
    return values


def placed_due(value: int, now_ms: int) -> tuple[int, bool]:
    """(the due time of a record stored now with this number in TIMER_OUT_MS, whether that is past).

    A past message falls due 1 ms from now, like one that is due now: restored and staged entries of a lane were due
    before, so a new entry always comes after them.
    """
    if value < record.TIMER_OUT_MIN:
        return min(max(value, 1) + now_ms, DUE_PLACED_MS_MAX), False
    return min(max(value, now_ms) + 1, DUE_PLACED_MS_MAX), value + 1 <= now_ms
