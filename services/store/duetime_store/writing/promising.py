"""The writer's steps with plans: staging one, and voiding all (promises.py)."""

from duetime_format.columns import Ints
from duetime_format.names import PLANS_TOPIC
from duetime_format.record import Record, encode, with_crc_mark

from duetime_store.lanes.lane import ShardLane
from duetime_store.log.intake import Intake
from duetime_store.writing.store import Store


def promise(store: Store, intake: Intake, lane: ShardLane, entries: Ints) -> None:
    """Stages a plan that gives the lane's next entries, whose records are `intake`, their places.

    Stages none on a full disk, or while the wall clock is behind the log, because the remaining time is then unknown.
    """
    if store.clock.behind_ms or store.gate.full:
        return
    queues = [store.queues.known(*key) for key in intake.keys]
    made = store.promises.make(lane, intake, entries, queues)
    if made is not None:
        body, now_ms = made.plan.encode(), store.clock.now_ms()
        store.stage_own(encode(Record(PLANS_TOPIC, 0, body, with_crc_mark(b""), born_at_ms=now_ms)))
        store.staged.settles.append(made.settle)


def void_all(store: Store) -> None:
    """Voids all plans, including those of staged records."""
    store.promises.clear()
    for batch in store.unpublished:
        batch.promised_count = 0
