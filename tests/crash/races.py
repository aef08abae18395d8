"""`make races`: cancels, reschedules and replacements just as the message falls due.

A pair is a message and a call that comes within 60 ms of its due time, before or after. The topic's final contents
decide:

    cancel        CANCELLED: never delivered; ALREADY_FIRED: once
    reschedule    rescheduled: once, with the new body, not before the new time; already fired: once, with the old body
    replacement   the message that it names as replaced: never; the new one: once; it names none: both once
    an error      either of these outcomes, never both and never none

PAIRS, KILLS and SEED are environment variables: with KILLS, processes are killed during the races.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from duetime import AsyncProducer, CancelResult, Message, Receipt
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.rpc.serving import make_channel

from bench.processes import NAMES, Processes
from tests.crash.contents import drain
from tests.crash.pulling import pulled

TOPIC = "races"
QUEUES = 8
# Messages that fall due together, so that a call finds some of them restored, some on their way and some pending.
GROUP = 50
SPREAD_MS = 12
GROUPS_AT_ONCE = 16
# Time from the send to the due time: the duration of the last send of its kind and half of that of the last call, plus
# this. Then the call's distance from the due time.
LEAD_MS = 400
APART_MS = 60
CALL_MS_MAX = 30_000
FIRST_SEND_MS = 1_500
# The share of calls that name messages by their ids alone.
BY_ID = 0.1
NEW_DELAYS_MS = (0, 1, 30, 400)
# Longer than any outage: the client tries again until it is told.
TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 10.0
DRAIN_S = 120.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OLD, NEW = b"old", b"new"
CANCEL, RESCHEDULE, REPLACE = KINDS = "cancel", "reschedule", "replace"
# A race is open if each of these answers comes.
BOTH_WAYS = [
    *((CANCEL, answer) for answer in ("CANCELLED", "ALREADY_FIRED")),
    *((RESCHEDULE, answer) for answer in ("rescheduled", "already fired")),
    *((REPLACE, answer) for answer in ("replaced", "none replaced")),
]


@dataclass(slots=True)
class Pair:
    """A message and the call about it. `answer`: the answer, or `error`; `new_due_at_ms`: a lower bound."""

    number: int
    call: str
    due_at_ms: int
    acknowledged: bool = False
    answer: str = "error"
    new_due_at_ms: int = 0

    @property
    def message_id(self) -> str:
        return f"p{self.number}"

    @property
    def other_id(self) -> str:
        """Of the message that replaces it."""
        return f"r{self.number}"


@dataclass
class Races:
    """Sends and calls, and records the answers."""

    address: str
    dice: random.Random
    pairs: list[Pair] = field(default_factory=list)
    # How long the last send and the last call took, by kind of call; of the first sends nobody knows.
    send_ms: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, FIRST_SEND_MS)))
    call_ms: Counter[str] = field(default_factory=Counter)
    # Why there was no answer.
    errors: Counter[str] = field(default_factory=Counter)

    async def prepare(self) -> None:
        async with make_channel(self.address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUES)
            await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)

    async def run(self, count: int) -> None:
        """Runs until there are `count` pairs, each answered or abandoned."""
        async with (
            AsyncProducer(self.address, timeout=timedelta(seconds=TIMEOUT_S)) as producer,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(GROUPS_AT_ONCE):
                group.create_task(self._work(producer, count))

    async def _work(self, producer: AsyncProducer, count: int) -> None:
        while len(self.pairs) < count:
            call = self.dice.choices(KINDS, (2, 1, 1))[0]
            base_ms = _now_ms() + LEAD_MS + self.send_ms[call] + self.call_ms[call] // 2
            first = len(self.pairs)
            pairs = [
                Pair(first + at, call, base_ms + self.dice.randint(0, SPREAD_MS))
                for at in range(min(GROUP, count - first))
            ]
            self.pairs += pairs
            await self._race(producer, pairs, call, base_ms)

    async def _race(self, producer: AsyncProducer, pairs: Sequence[Pair], call: str, base_ms: int) -> None:
        receipts: list[Receipt | str] = []
        began_ms = _now_ms()
        outcomes = await producer.send_many(map(_message, pairs), errors="return")
        self.send_ms[call] = min(_now_ms() - began_ms, CALL_MS_MAX)
        # Calls that search for one message are slow for all.
        by_id = self.dice.random() < BY_ID
        for pair, outcome in zip(pairs, outcomes, strict=True):
            pair.acknowledged = isinstance(outcome, Receipt)
            receipts.append(outcome if isinstance(outcome, Receipt) and not by_id else pair.message_id)
        # A call is decided on its way: a slow one has to begin so much sooner.
        at_ms = base_ms + self.dice.uniform(-APART_MS, APART_MS) - self.call_ms[call] / 2
        await asyncio.sleep(max(0.0, at_ms - _now_ms()) / 1000)
        began_ms = _now_ms()
        await self._call(producer, pairs, receipts, call)
        self.call_ms[call] = min(_now_ms() - began_ms, CALL_MS_MAX)

    async def _call(
        self, producer: AsyncProducer, pairs: Sequence[Pair], receipts: Sequence[Receipt | str], call: str
    ) -> None:
        if call == CANCEL:
            for pair, told in zip(pairs, await producer.cancel(receipts, errors="return"), strict=True):
                if isinstance(told, CancelResult):
                    pair.answer = told.name
                else:
                    self.errors[repr(told.about(""))] += 1
        elif call == RESCHEDULE:
            await self._reschedule(producer, pairs, receipts)
        else:
            sent = await producer.send_many([_replacement(pair) for pair in pairs], errors="return")
            for pair, outcome in zip(pairs, sent, strict=True):
                if isinstance(outcome, Receipt):
                    pair.answer = "replaced" if outcome.replaced_id == pair.message_id else "none replaced"
                else:
                    self.errors[repr(outcome.about(""))] += 1

    async def _reschedule(
        self, producer: AsyncProducer, pairs: Sequence[Pair], receipts: Sequence[Receipt | str]
    ) -> None:
        delay_ms, now_ms = self.dice.choice(NEW_DELAYS_MS), _now_ms()
        if self.dice.random() < 0.5:
            answers = await producer.reschedule(receipts, delay=f"{delay_ms}ms", body=NEW, errors="return")
        else:
            answers = await producer.reschedule(
                receipts, deliver_at=_moment(now_ms + delay_ms), body=NEW, errors="return"
            )
        for pair, told in zip(pairs, answers, strict=True):
            pair.new_due_at_ms = now_ms + delay_ms
            if isinstance(told, Exception):
                self.errors[repr(told.about(""))] += 1
                continue
            pair.answer = told.status
            if told.deliver_at is not None:
                pair.new_due_at_ms = max(pair.new_due_at_ms, (told.deliver_at - _EPOCH) // timedelta(milliseconds=1))


def _message(pair: Pair) -> Message:
    replaceable = pair.call == REPLACE
    key = f"k{pair.number}" if replaceable else ""
    due = _moment(pair.due_at_ms)
    return Message(TOPIC, OLD, deliver_at=due, id=pair.message_id, key=key, replace=replaceable)


def _replacement(pair: Pair) -> Message:
    return Message(TOPIC, NEW, delay="20ms", id=pair.other_id, key=f"k{pair.number}", replace=True)


def _moment(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- the truth ------------------------------------------------------------------------------------------------------

Delivered = Mapping[str, Sequence[message_pb2.StoredMessage]]


def faults(pairs: Sequence[Pair], messages: Sequence[message_pb2.StoredMessage]) -> Iterator[str]:
    """All that was answered and is not so."""
    delivered: dict[str, list[message_pb2.StoredMessage]] = defaultdict(list)
    for one in messages:
        delivered[one.id].append(one)
    known = {pair.message_id for pair in pairs} | {pair.other_id for pair in pairs if pair.call == REPLACE}
    yield from (f"{message_id}: nobody sent it" for message_id in delivered.keys() - known)
    for pair in pairs:
        found = _faults(pair, delivered)
        if found is None and any(not _in_time(pair, one) for one in delivered[pair.message_id]):
            found = "delivered before its time"
        if found is not None:
            what = [(one.body.decode(), one.stored_at_ms - pair.due_at_ms) for one in delivered[pair.message_id]]
            yield f"{pair}: {found}; (body, ms after the first due time) of what was delivered: {what}"


def _in_time(pair: Pair, one: message_pb2.StoredMessage) -> bool:
    return one.stored_at_ms >= (pair.new_due_at_ms if one.body == NEW else pair.due_at_ms)


def _faults(pair: Pair, delivered: Delivered) -> str | None:
    bodies = [one.body for one in delivered[pair.message_id]]
    if not pair.acknowledged:
        return "delivered more than once" if len(bodies) > 1 else None
    allowed: tuple[list[bytes], ...]
    if pair.call == REPLACE:
        return _replace_faults(pair, bodies, [one.body for one in delivered.get(pair.other_id, ())])
    if pair.call == CANCEL:
        allowed = {"CANCELLED": ([],), "ALREADY_FIRED": ([OLD],), "error": ([], [OLD])}.get(pair.answer, ())
    else:
        wanted = {"rescheduled": ([NEW],), "already fired": ([OLD],), "error": ([OLD], [NEW])}
        allowed = wanted.get(pair.answer, ())
    return None if bodies in allowed else f"{bodies} is none of {allowed}"


def _replace_faults(pair: Pair, old: list[bytes], new: list[bytes]) -> str | None:
    allowed = {
        "replaced": (([], [NEW]),),
        "none replaced": (([OLD], [NEW]),),
        "error": (([OLD], []), ([OLD], [NEW]), ([], [NEW])),
    }[pair.answer]
    return None if (old, new) in allowed else f"{old} and {new} are none of {allowed}"


# --- a run ----------------------------------------------------------------------------------------------------------


async def kill_meanwhile(cluster: Processes, kills: int, running: "asyncio.Task[None]", dice: random.Random) -> int:
    """Kills processes at random times until the races end. Returns the number of kills."""
    killed = 0
    while killed < kills and not running.done():
        await asyncio.wait({running}, timeout=dice.choice([0.1, dice.uniform(0.5, 2.0), dice.uniform(2.0, 4.0)]))
        killed += cluster.kill(dice.choice(NAMES)) is not None
    return killed


async def race(cluster: Processes, count: int, kills: int, dice: random.Random) -> Counter[tuple[str, str]]:
    """Runs `count` pairs. Returns the answers, by call. Raises: AssertionError: an answer was false, or all
    of a kind were alike."""
    races = Races(cluster.address, dice)
    await races.prepare()
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(races.run(count))
        killed = await kill_meanwhile(cluster, kills, running, dice)
    took_s = time.monotonic() - began_s
    await drain(cluster.address, DRAIN_S)
    found = list(faults(races.pairs, await pulled(cluster.address, TOPIC)))
    answers = Counter((pair.call, pair.answer) for pair in races.pairs if pair.acknowledged)
    print(f"{len(races.pairs)} pairs in {took_s:.0f} s, {killed} kills: {dict(sorted(answers.items()))}", flush=True)
    for text, times in races.errors.most_common(5):
        print(f"no answer to {times}: {text}", flush=True)
    assert not found, "\n".join([f"{len(found)} answers were not true:", *found[:20]])
    missing = [one for one in BOTH_WAYS if not answers[one]]
    assert not missing, f"no race, this run proves nothing: no call was answered {missing}"
    return answers


def main() -> None:
    count, kills = int(os.environ.get("PAIRS") or "100000"), int(os.environ.get("KILLS") or "0")
    seed = int(os.environ.get("SEED") or time.time_ns() % 1_000_000_000)
    print(f"seed {seed}: {count} pairs, {kills} kills at most", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="duetime-races-") as folder,
        Processes(Path(folder), {"DUETIME_LOG_LEVEL": "WARNING"}, impatient=bool(kills)) as cluster,
    ):
        try:
            asyncio.run(race(cluster, count, kills, random.Random(seed)))
        except AssertionError as error:
            print(f"FAILED, seed {seed}: {error}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
