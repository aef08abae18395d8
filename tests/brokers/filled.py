"""A shard of DueTime with messages in every state, and some that fall due while a broker has its export."""

from pathlib import Path

from duetime import Decision, Message

from tests.cluster.half_used import Received, Running, Used, due, ids, running

TOPIC, GROUP, PRODUCERS = "orders", "billing", "sellers"
AGE_MS = 3 * 3_600_000
# Delays of levels and of any time. A broker needs most of the first minute for its start.
SOON = ("1m", "75s", "90500ms", "101s", "2m")
SOON_MS = 125_000
FAR = ("1h", "2h", "47h", "60h", "10d")


async def filled(folder: Path, now_ms: int) -> Used:
    """A shard that was in use for three hours until now."""
    async with running(folder, now_ms - AGE_MS) as shard:
        await at_first(shard)
        await shard.cluster.advance(f"{AGE_MS}ms")
        left = await received(shard)
        await many(shard, "soon", SOON)
        await many(shard, "far", FAR)
        await shard.producer.prepare_many(messages("open", 3), group=PRODUCERS)
        ended = await shard.end()
    root = folder / "store-0"
    return Used(root, *ended, due(root), {(GROUP, TOPIC): left})


def messages(name: str, count: int, delay: str | None = None) -> list[Message]:
    named = [f"{name}-{delay or 0}-{number}" for number in range(count)]
    return [Message(TOPIC, b"body of " + one.encode(), delay, id=one, key=one, tags="tag") for one in named]


async def many(shard: Running, name: str, delays: tuple[str, ...], count: int = 8) -> None:
    for delay in delays:
        await shard.producer.send_many(messages(name, count, delay))


async def at_first(shard: Running) -> None:
    """Messages that were delivered, cancelled or replaced since, and ended transactions."""
    await shard.producer.send_many(messages("sent", 60))
    await many(shard, "over", ("10s", "90m", "95m"))
    gone = await shard.producer.send_many(messages("gone", 12, "4h") + messages("gone", 12, "2h"))
    await shard.producer.cancel(gone[:10] + gone[12:22])
    moved = await shard.producer.send_many(messages("moved", 4, "5h"))
    await shard.producer.reschedule(moved, delay="30h")
    prepared = await shard.producer.prepare_many(messages("ended", 4), group=PRODUCERS)
    await shard.producer.end_many(prepared[:2], Decision.COMMIT)
    await shard.producer.end_many(prepared[2:], Decision.ROLLBACK)


async def received(shard: Running) -> Received:
    """Acknowledges half of all messages, fails some of the next, and returns those that are left."""
    got = sorted(await shard.receive(GROUP, TOPIC), key=lambda one: one.message.offset)
    half = len(got) // 2
    await shard.ack(GROUP, got[:half])
    await shard.fail(GROUP, got[half : half + 4], 80_000)
    return ids(got[half + 4 :])
