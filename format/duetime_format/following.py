r"""The next occurrences of schedules, made from the bytes of the restored ones. Pure.

Nearly all restored occurrences have the form in which the store wrote them. Only some of their bytes change:

    others | UNIQ_KEY | DT_SCHEDULE {..,"planned":13 digits} | TIMER_DELIVER_MS | DT_UPSERT | TIMER_OUT_MS | ..
             └ its last 11 digits                   └ planned  └ planned                      └ planned - 1
    .. REAL_TOPIC | REAL_QID | DT_ENTRY | __CRC32#
                               └ left out

The head gets the lane's topic and queue, the present as the time of birth, and no attempts. The result equals that of
schedules.with_schedule and replacing.replacing, which make the next one of an occurrence in another form: it is ODD.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from duetime_format import columns, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.compiled import twin
from duetime_format.lanes import place_of
from duetime_format.limits import SCHEDULE_EVERY_MS_MIN
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import VALUE_END
from duetime_format.replacing import DEFERRAL, LATEST_MAX, TRACING
from duetime_format.schedules import ALL, MS_END, ONE, SERIES_CHARS, SKIP

# Kinds: no occurrence of a schedule, one at an interval, one at the times of `rule`, and one of another form.
NO_OCCURRENCE, AT_INTERVAL, BY_RULE, ODD = range(4)
# Rows of readings. RULE_AT and RULE_END: the bounds in the run's data of the rule's fields, such as `,"cron":"..."`.
# SAME_AS: the index of a record, often the first, with the same rule and planned time.
KIND, PLANNED, EVERY_MS, START_AT_MS, MISSED, RULE_AT, RULE_END, SAME_AS, ROWS = range(9)
MISSED_POLICIES = (ONE, ALL, SKIP)
# A planned time has 13 digits, and TIMER_OUT_MS, a ms before, is no delay.
PLANNED_MIN, PLANNED_END = record.TIMER_OUT_MIN + 1, MS_END
RULE_BYTES_MAX = 512

_TIMER_TOPIC = TIMER_TOPIC.encode()
_DROPPED = frozenset((*DEFERRAL, *(name.encode() for name in (*TRACING, record.UNIQ_KEY, record.SCHEDULE))))
_NUMBER, _TEXT = rb"[1-9][0-9]{0,12}", rb"[\x20\x21\x23-\x5b\x5d-\x7e]+"
_SCHEDULE = rb"".join(
    (
        rb'\{"name":"(?P<name>[^"\\\x00-\x1f]*)"',
        rb'(?:,"every_ms":(?P<every>%b))?' % _NUMBER,
        rb'(?:,"start_at_ms":(?P<start>%b))?' % _NUMBER,
        rb'(?P<rule>(?:,"at_ms":\[%b(?:,%b)*\])?(?:,"cron":"%b")?' % (_NUMBER, _NUMBER, _TEXT),
        rb'(?:,"zone":"%b")?(?:,"in_gap":"skip")?(?:,"in_fold":"both")?)' % _TEXT,
        rb'(?:,"missed":"(?P<missed>all|skip)")?(?:,"made_at_ms":%b)?(?:,"seed":"%b")?' % (_NUMBER, _TEXT),
        rb'(?:,"version":(?!1,)%b)?,"planned":(?P<planned>[1-9][0-9]{12})\}' % _NUMBER,
    )
)
_PROPERTIES = re.compile(
    rb"".join(
        (
            rb"(?P<others>.*\x02|)UNIQ_KEY\x01[0-9A-F]{%d}(?P<tail>[0-9A-F]{11})" % SERIES_CHARS,
            rb"\x02DT_SCHEDULE\x01%b" % _SCHEDULE,
            rb"\x02TIMER_DELIVER_MS\x01(?P<deliver>[0-9]{13})\x02DT_UPSERT\x01%d" % LATEST_MAX,
            rb"\x02TIMER_OUT_MS\x01(?P<out>[0-9]{13})",
            rb"\x02REAL_TOPIC\x01[^\x01\x02]{1,127}\x02REAL_QID\x01[0-9]{1,10}",
            rb"(?P<end>)\x02DT_ENTRY\x01[0-9:]{1,59}\x02__CRC32#\x01.{10}\x02",
        )
    ),
    re.DOTALL,
)
# The twin reads the constants.
_twin = twin("duetime_format._following")


class Followed(NamedTuple):
    """Restored records with the next occurrences, each in front of its own."""

    # Its bytes may be a bytearray, which `placing.place` fills in instead of a copy.
    run: RecordRun
    # Those of the next occurrences, each `topic 0x01 name 0x01 id`, joined by 0x02.
    labels: bytes


def readings(run: RecordRun) -> Ints:
    """The kind of each record, and the times of its schedule; see ROWS. Other rows are 0 if it is not BY_RULE or
    AT_INTERVAL."""
    if _twin is not None:
        return np.frombuffer(_twin.readings(run.data, run.columns), np.int64).reshape(ROWS, run.count)
    found = np.zeros((ROWS, run.count), np.int64)
    firsts: dict[tuple[bytes, bytes], int] = {}
    for index in range(run.count):
        properties = run.properties(index)
        one = _read(properties)
        if one is None:
            found[KIND, index] = ODD if b"DT_SCHEDULE\x01" in properties else NO_OCCURRENCE
            continue
        at, every_ms = int(run.properties_at[index]), int(one["every"] or 0)
        found[:, index] = (
            AT_INTERVAL if every_ms else BY_RULE,
            int(one["planned"]),
            every_ms,
            int(one["start"] or 0),
            MISSED_POLICIES.index((one["missed"] or b"one").decode()),
            at + one.start("rule"),
            at + one.end("rule"),
            index if every_ms else firsts.setdefault((one["rule"], one["planned"]), index),
        )
    return found


def part(readings: Ints, start: int, stop: int, begin: int) -> Ints:
    """The readings of the records [start, stop), whose bytes start at index `begin` of the run's data."""
    own = np.ascontiguousarray(readings[:, start:stop])
    is_read = own[RULE_END] > 0
    own[RULE_AT : RULE_END + 1] -= np.where(is_read, begin, 0)
    if (own[SAME_AS] < start).any():
        # Records in front of the part: the first one in it with the same rule and time takes their place.
        _, firsts, same = np.unique(own[SAME_AS], return_index=True, return_inverse=True)
        own[SAME_AS] = np.where(is_read, firsts[same], 0)
    else:
        own[SAME_AS] -= start
    return own


def _read(properties: bytes) -> re.Match[bytes] | None:
    """The properties' parts, if they have the form of the store."""
    one = _PROPERTIES.fullmatch(properties)
    if one is None or one["tail"] != b"%011X" % int(one["planned"]) or not _is_text(one["name"]):
        return None
    if one["every"]:
        if int(one["every"]) < SCHEDULE_EVERY_MS_MIN:
            return None
    elif not 0 < len(one["rule"]) <= RULE_BYTES_MAX:
        return None
    others = one["others"].split(VALUE_END)[:-1]
    if any(not part or part.split(b"\x01", 1)[0] in _DROPPED for part in others):
        return None
    return one


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def follow(
    run: RecordRun, planned: Ints, lane: int, now_ms: int, others: Mapping[int, tuple[bytes, bytes]]
) -> Followed:
    """Restored records of a lane for any time, with their next occurrences.

    Args:
        planned: the time of each next one, PLANNED_MIN to PLANNED_END; 0: there is none. Their records are not ODD.
        others: records and labels of further next ones, by index.
    """
    if _twin is not None:
        own = _TIMER_TOPIC, place_of(lane)[1]
        keys = list(dict.fromkeys((*run.keys, own)))
        data, found, fields, entries = _twin.follow(
            run.data, run.columns, run.entries, planned, keys.index(own), own[1], now_ms, others
        )
        if fields is None:
            return Followed(columns.parse(bytes(data)), found)
        return Followed(RecordRun(data, 0, len(data), keys, fields, entries, run.destinations), found)
    parts: list[bytes] = []
    labels: list[bytes] = []
    for index, at_ms in enumerate(planned.tolist()):
        if index in others or at_ms:
            made, label = others[index] if index in others else _following(run, index, at_ms, lane, now_ms)
            parts.append(made)
            labels.append(label)
        start = int(run.starts[index])
        parts.append(run.data[start : start + int(run.sizes[index])])
    return Followed(columns.parse(b"".join(parts)), VALUE_END.join(labels))


def _following(run: RecordRun, index: int, planned: int, lane: int, now_ms: int) -> tuple[bytes, bytes]:
    """The next occurrence, and its label."""
    if not PLANNED_MIN <= planned < PLANNED_END:
        raise ValueError(f"planned time {planned} does not have 13 digits")
    own, properties = run.record(index), bytearray(run.properties(index))
    one = _read(bytes(properties))
    if one is None:
        raise ValueError(f"record {index} is no occurrence in the form of the store")
    for name, digits in (("tail", b"%011X" % planned), ("out", b"%d" % (planned - 1))):
        properties[one.start(name) : one.end(name)] = digits
    for name in ("planned", "deliver"):
        properties[one.start(name) : one.end(name)] = b"%d" % planned
    message_id = bytes(properties[one.start("tail") - SERIES_CHARS : one.end("tail")])
    label = b"\x01".join((own.topic.encode(), one["name"], message_id))
    made = replace(
        own,
        topic=TIMER_TOPIC,
        queue=place_of(lane)[1],
        properties=record.with_crc_mark(bytes(properties[: one.start("end")])),
        born_at_ms=now_ms,
        reconsume_times=0,
        sys_flag=own.sys_flag & ~layout.SYS_TRANSACTION,
        stored_at_ms=0,
        prepared_transaction_offset=0,
        queue_offset=0,
        position=0,
    )
    return record.encode(made), label
