r"""When the record of a message for any time falls due, a broker's or ours. Pure bytes.

    ... TIMER_DELAY_MS 0x01 5000 0x02 ... TIMER_OUT_MS 0x01 13 digits 0x02 REAL_TOPIC 0x01 orders 0x02 REAL_QID 0x01 3

TIMER_OUT_MS (`out`) is the last ms before the message falls due, to the precision of who wrote it: the store's is 1 ms,
a broker's 100 ms to 1 s. What was asked for says which ms of that it is:

    asked = store time + 1000 * TIMER_DELAY_SEC, else store time + TIMER_DELAY_MS, else TIMER_DELIVER_MS
    due   = asked, but within out + 1 and out + 1000; out + 1000 where nothing readable was asked for

So a broker's message falls due no earlier than asked, and no later than the broker fires it, also when it was stored a
second time (a roll, which counts no delay anew). Where `out` can't be read the message is due when asked, else at once.

Numbers are read as Java's Long.parseLong does; one that it does not take counts as missing.

Source: RocketMQ 5.x HookUtils.transformTimerMessage, TimerMessageStore.
"""

import re

import numpy as np

from duetime_format import record
from duetime_format.columns import Run
from duetime_format.compiled import twin
from duetime_format.properties import value_of
from duetime_format.record import Record
from duetime_format.units import DUE_MS_LIMIT, Ints, Mask

_twin = twin("duetime_format._timers")

# Moments and lengths beyond count as this one, so that no sum leaves an i64.
MS_MAX = DUE_MS_LIMIT - 2_000
PRECISION_MS_MAX = 1_000
# Of records that are stored now: the last one before which a ms of 13 digits lies.
DUE_PLACED_MS_MAX: int = 10**record.TIMER_OUT_DIGITS
_I64_MIN, _I64_MAX = -(1 << 63), (1 << 63) - 1
_LONG = re.compile(rb"([+-]?)0*([0-9]{1,19})")
_OUT, _SEC, _MS, _DELIVER = (
    name.encode()
    for name in (record.TIMER_OUT_MS, record.TIMER_DELAY_SEC, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS)
)
_POWERS = 10 ** np.arange(record.TIMER_OUT_DIGITS - 1, -1, -1)


def due_at_ms(found: Record) -> int:
    """When a pending record of TIMER_TOPIC falls due: 0 to DUE_MS_LIMIT - 1."""
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
    """The number as Java's Long.parseLong reads ASCII; None: it takes no such text."""
    found = _LONG.fullmatch(text)
    if found is None:
        return None
    value = int(found[1] + found[2])
    return value if _I64_MIN <= value <= _I64_MAX else None


def dues(run: Run, indices: Ints) -> Ints:
    """The due times of the records at `indices`, all of TIMER_TOPIC."""
    if _twin is not None:
        return np.frombuffer(_twin.dues(run.data, run.columns, np.ascontiguousarray(indices, np.int64)), np.int64)
    stored_at_ms = run.stored_at_ms[indices].tolist()
    rows = zip(indices.tolist(), stored_at_ms, strict=True)
    return np.array([due_by(run.properties(index), at_ms) for index, at_ms in rows], np.int64)


def agree(run: Run, indices: Ints) -> Mask:
    """Which of the records at `indices`, of TIMER_TOPIC and not stored yet, ask for the time that TIMER_OUT_MS says:
    only these fall due when the store answers that they do."""
    if _twin is not None:
        found = _twin.agree(run.data, run.columns, np.ascontiguousarray(indices, np.int64))
        agreeing: Mask = np.frombuffer(found, np.int64) != 0
        return agreeing
    return np.array([agrees(run.properties(index)) for index in indices.tolist()], np.bool_)


def agrees(properties: bytes) -> bool:
    """See `agree`: a delay is asked for by a delay that is no longer, a moment by TIMER_DELIVER_MS that is no later."""
    out, seconds, delay, deliver = (java_long(value_of(properties, name)) for name in (_OUT, _SEC, _MS, _DELIVER))
    if out is None:
        return False
    if out >= record.TIMER_OUT_MIN:
        return seconds is None and delay is None and deliver is not None and deliver - 1 <= out
    if seconds is not None:
        return seconds * 1_000 <= max(out, 1)
    return delay is not None and delay <= max(out, 1)


def outs(run: Run, indices: Ints) -> Ints:
    """What senders wrote into TIMER_OUT_MS, a delay or the last ms before a moment, in records that have its 13 digits
    (`Run.timer_at`)."""
    digits = np.frombuffer(run.data, np.uint8)[run.timer_at[indices][:, None] + np.arange(len(_POWERS))]
    values: Ints = (digits.astype(np.int64) - ord("0")) @ _POWERS
    return values


def placed_due(value: int, now_ms: int) -> tuple[int, bool]:
    """(when a record falls due that is stored now with this number in TIMER_OUT_MS, whether it names a past time).

    A message for the past falls due 1 ms from now, as any does that is due now: what a lane has restored or staged was
    due before, so a new entry lies after all of that.
    """
    if value < record.TIMER_OUT_MIN:
        return min(max(value, 1) + now_ms, DUE_PLACED_MS_MAX), False
    return min(max(value, now_ms) + 1, DUE_PLACED_MS_MAX), value + 1 <= now_ms
