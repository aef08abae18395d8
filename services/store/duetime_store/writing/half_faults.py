"""Reasons to reject half messages: the faults that would reject their commits, found while the senders still wait."""

import numpy as np
from duetime_core.errors import DueTimeError
from duetime_format import halves, layout, record
from duetime_format.columns import values
from duetime_format.lanes import LANE_TOPICS
from duetime_format.lengths import written
from duetime_format.levels import DELAY_MAX, DELAY_MS_MAX
from duetime_format.limits import GROUP_CHARS_MAX, ID_CHARS_MAX
from duetime_format.names import HALF_TOPIC, is_name
from duetime_format.properties import as_text
from duetime_format.timers import java_long

from duetime_store.log.intake import Intake
from duetime_store.writing.faults import OWN_PROPERTIES, SENT_BYTES_MAX, RecordLimits, own_faults, sent_key_fault
from duetime_store.writing.store import Store

_HALF_KEY = HALF_TOPIC.encode(), 0
# Maximum bytes that a commit adds to a record: DT_HALF, TIMER_OUT_MS and a longer topic.
COMMIT_BYTES_MAX = 256
_OWN_PROPERTIES = (*OWN_PROPERTIES, halves.HALF.encode() + b"\x01")
_NAMES = tuple(
    name.encode()
    for name in (
        *(record.UNIQ_KEY, record.TRAN_MSG, record.PRODUCER_GROUP, record.REAL_TOPIC, record.REAL_QID),
        *(record.DELAY, record.TIMER_DELAY_SEC, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS),
    )
)
_TIMERS = _NAMES[-3:]

Text = bytes | None


def half_faults(store: Store, intake: Intake) -> dict[int, str | DueTimeError]:
    """Faults of half records by index, and errors for new queues of their destinations."""
    taken, now_ms = (
        RecordLimits(store.levels.highest, store.timer_lane_count, store.log.record_bytes_max),
        store.clock.now_ms(),
    )
    born = np.frombuffer(intake.data, np.uint8)[intake.starts + layout.BORN_AT]
    odd = ((intake.flags & layout.SYS_TRANSACTION) != 0) | ((born & 0x80) != 0)
    sizes_max = min(SENT_BYTES_MAX, taken.record_bytes_max - COMMIT_BYTES_MAX)
    own = own_faults(intake, _OWN_PROPERTIES)
    faults: dict[int, str | DueTimeError] = {}
    targets: dict[int, tuple[bytes, int]] = {}
    # Most records of a call differ in their ids only.
    judged: dict[tuple[Text, ...], str | tuple[bytes, int]] = {}
    ids, *named = values(intake.data, intake.sizes.tolist(), _NAMES)
    rows = zip(intake.key_of.tolist(), intake.sizes.tolist(), odd.tolist(), ids, zip(*named, strict=True), strict=True)
    for index, (key, size, is_odd, message_id, names) in enumerate(rows):
        target = judged.get(names)
        if target is None:
            target = judged[names] = _judge(names, taken.highest, now_ms)
        fault = own.get(index, "")
        if intake.keys[key] != _HALF_KEY:
            fault = f"is not a record of queue 0 of {HALF_TOPIC}"
        elif is_odd:
            fault = "has transaction bits in its sysFlag, or was born before 1970"
        elif size > sizes_max:
            fault = f"record of {size} bytes; the limit is {sizes_max}"
        fault = fault or (target if isinstance(target, str) else "") or _id_fault(message_id)
        if isinstance(target, str) or fault:
            faults[index] = fault
        else:
            targets[index] = target
    _add_crowded(store, faults, targets)
    return faults


def _add_crowded(store: Store, faults: dict[int, str | DueTimeError], targets: dict[int, tuple[bytes, int]]) -> None:
    """Creates the destination queues now, because commits must not fail for them. Deleted topics get none."""
    for index, (topic, _) in list(targets.items()):
        refusal = store.closing.refusal(as_text(topic))
        if refusal is not None:
            faults[index] = refusal
            del targets[index]
    keys = list(dict.fromkeys(targets.values()))
    if crowded := store.queues.refuse_new(keys):
        refused = {keys[number]: error for number, error in crowded.items()}
        faults.update((index, refused[key]) for index, key in targets.items() if key in refused)


def _judge(named: tuple[Text, ...], highest: int, now_ms: int) -> str | tuple[bytes, int]:
    """The fault in a half message's properties, apart from its id. If there is none: the destination."""
    tran_msg, group, topic, queue, *delay = named
    fault = _name_fault(tran_msg, group, topic, queue) or _delay_fault(delay, highest, now_ms)
    return fault or (topic or b"", int(queue or b""))


def _id_fault(message_id: Text) -> str:
    """The fault of UNIQ_KEY."""
    if message_id is not None and len(message_id) <= ID_CHARS_MAX:
        return ""
    count = len(as_text(message_id or b""))
    return "" if 1 <= count <= ID_CHARS_MAX else f"{record.UNIQ_KEY} of {count} characters; it has 1 to {ID_CHARS_MAX}"


def _name_fault(*named: Text) -> str:
    """The fault of TRAN_MSG, PGROUP, REAL_TOPIC or REAL_QID."""
    tran_msg, group, topic, queue = (as_text(text or b"") for text in named)
    if tran_msg != "true":
        return f"{record.TRAN_MSG} is {tran_msg[:32]!r}, not true"
    if not (1 <= len(group) <= GROUP_CHARS_MAX and is_name(group)):
        return f"{record.PRODUCER_GROUP} {group[:64]!r} is not 1 to {GROUP_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"
    if not (queue.isascii() and queue.isdigit() and len(queue) <= 10):
        return f"{record.REAL_QID} {queue[:32]!r} is not a queue number"
    if not topic:
        return f"{record.REAL_TOPIC} is missing"
    if topic in LANE_TOPICS:
        return f"{record.REAL_TOPIC} {topic} is a lane"
    return sent_key_fault(topic.encode(), int(queue), 0, 0)


def _delay_fault(named: list[Text], highest: int, now_ms: int) -> str:
    """The fault of the requested delay."""
    level, *timers = named
    asked = [(name.decode(), text) for name, text in zip(_TIMERS, timers, strict=True) if text is not None]
    if level is not None:
        asked.append((record.DELAY, level))
    if not asked:
        return ""
    if len(asked) > 1:
        return f"asks for two delays: {asked[0][0]} and {asked[1][0]}"
    ((name, text),) = asked
    number = java_long(text)
    if number is None or number < 0:
        return f"{name} {text[:32].decode('utf-8', 'replace')!r} is not a number of at least 0"
    if name == record.DELAY:
        return "" if number <= highest else f"level {number} is above the highest, {highest}"
    if name == record.TIMER_DELIVER_MS:
        ahead_ms = number - now_ms
    else:
        ahead_ms = number * 1_000 if name == record.TIMER_DELAY_SEC else number
    if ahead_ms > DELAY_MS_MAX:
        return f"falls due {written(ahead_ms)} ahead; the limit is {DELAY_MAX}"
    return ""
