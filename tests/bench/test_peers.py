"""Conditions for the figures of peers' clients to count."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.consumer import consumer
from bench.contest import check
from bench.peers import BODY, DELAY_S, Missing, Peer, Promises, amqp
from bench.peers.beanstalkd import Beanstalkd, BeanstalkdReceiver
from bench.peers.postgres import Postgres
from bench.peers.rabbitmq import RabbitMQ
from bench.peers.redis import Redis
from bench.peers.tasks import Celery, Dramatiq, Taskiq


def test_receiver_learns_of_a_nearer_time_and_of_one_after_its_promise() -> None:
    promises = Promises()
    assert promises.must_tell(due_at_ms=2_000, now_ms=1_000)
    assert not promises.must_tell(due_at_ms=2_000, now_ms=1_100)
    assert promises.must_tell(due_at_ms=1_900, now_ms=1_100)
    # The promised moment is too near: the receiver may have looked before this is stored.
    assert promises.must_tell(due_at_ms=2_700, now_ms=1_700)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_are_found_wherever_the_stream_is_cut(step: int) -> None:
    stream = amqp.publish_head("queue", len(BODY)) + BODY + amqp.END
    unread, found = amqp.Unread(), []
    for at in range(0, len(stream), step):
        found += unread.frames(stream[at : at + step])
    assert [kind for kind, _ in found] == [amqp.METHOD, amqp.CONTENT_HEADER, amqp.BODY]
    assert found[2][1] == BODY


def test_closed_channel_is_no_silence() -> None:
    closed = amqp.method(amqp.CHANNEL_CLOSE, b"\x01\x96" + amqp.short("PRECONDITION_FAILED") + b"\x00" * 4)
    with pytest.raises(amqp.Refused, match="PRECONDITION_FAILED"):
        list(amqp.Unread().frames(closed))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_jobs_are_found_wherever_the_stream_is_cut(step: int) -> None:
    receiver = BeanstalkdReceiver("", "tube")
    receiver._unread = b""
    # A body may look like an answer.
    stream = b"WATCHING 2\r\nRESERVED 7 13\r\nx\r\nDELETED\r\ny\r\nDELETED\r\nRESERVED 8 1\r\nz\r\n"
    found = []
    for at in range(0, len(stream), step):
        receiver._unread += stream[at : at + step]
        found += receiver._parse()
    assert found == [(b"7", b"x\r\nDELETED\r\ny"), (b"8", b"z")]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that servers of other users can reach, with a path short enough for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="duetime-", dir="/var/tmp") as root:
        Path(root).chmod(0o711)
        yield Path(root)


@pytest.mark.parametrize(
    "kind", [Postgres, Redis, Beanstalkd, RabbitMQ, Celery, Dramatiq, Taskiq], ids=lambda kind: kind.name
)
async def test_each_message_arrives_once_and_not_early(kind: type[Peer], directory: Path) -> None:
    peer = kind()
    try:
        try:
            peer.start(directory / kind.name)
        except Missing as error:
            pytest.skip(f"{kind.name}: {error}")
        peer.make_topic("orders")
        sender = await peer.sender("orders")
        with consumer(peer.receiver("orders"), timed=True) as far_end:
            await sender.send(300, DELAY_S)
            await sender.send(1, DELAY_S)
            arrivals = await far_end.all(301)
        await sender.close()
        check(arrivals, 301)
        assert len(arrivals.late_ms) == 301
    finally:
        peer.stop()
