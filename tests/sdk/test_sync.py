"""The synchronous producer and puller, from threads and at the interpreter's exit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from duetime import Closed, InvalidMessage, Message, NotFound, Overloaded, Producer, Puller, Receipt
from duetime.client.sync.background import background

from tests.sdk.gateway import SENDS, Gateway, bodies_of, messages_of
from tests.sdk.running import run_python


def test_sent_messages_are_pulled(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address) as producer:
        receipt = producer.send(topic, b"cancel 42", delay="30m", tags="timeout", keys=["42"])
        receipts = producer.send_many(
            [Message(f"{topic}-parcels", b"a", delay="5s"), Message(f"{topic}-parcels", b"b")]
        )
    assert receipt.deliver_at is not None
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    threaded_tap.nodes.advance("30m")
    with Puller(threaded_tap.address, topic, start="earliest") as puller:
        (message,) = puller.poll(max=256, wait="30s")
        assert (message.id, message.body, message.keys) == (receipt.message_id, b"cancel 42", ["42"])


def test_iteration_and_positions_agree(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.nodes.run(threaded_tap.make_topic(topic, 2))
    with Producer(threaded_tap.address) as producer:
        producer.send_many([Message(topic, str(n).encode(), queue=n % 2) for n in range(10)])
    with Puller(threaded_tap.address, topic) as puller:
        seen: dict[int, int] = {0: 0, 1: 0}
        for count, message in enumerate(puller, start=1):
            seen[message.queue] = message.offset + 1
            assert puller.positions == seen
            if count == 3:
                break
        rest = puller.poll(wait="30s")
        while len(rest) < 7:
            rest += puller.poll(wait="30s")
        assert puller.positions == {0: 5, 1: 5}


def test_commit_stops_at_the_last_iterated_message(threaded_tap: Gateway, topic: str, group: str) -> None:
    with Producer(threaded_tap.address) as producer:
        producer.send_many([Message(topic, str(n).encode(), queue=0) for n in range(10)])
    with Puller(threaded_tap.address, topic, group=group) as puller:
        for count, _ in enumerate(puller, start=1):
            if count == 3:
                break
        puller.commit()
    with Puller(threaded_tap.address, topic, group=group) as puller:
        assert puller.positions[0] == 3


def test_threads_share_requests(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address) as producer, ThreadPoolExecutor(32) as threads:
        receipts = list(threads.map(lambda n: producer.send(topic, str(n).encode()), range(200)))
    assert len({receipt.message_id for receipt in receipts}) == 200
    assert len(threaded_tap.sends) < 200


def test_errors_come_to_the_caller(threaded_tap: Gateway, topic: str) -> None:
    with pytest.raises(NotFound), Puller(threaded_tap.address, "none"):
        pass
    producer = Producer(threaded_tap.address)
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(topic, b"x")


def test_a_puller_closed_by_another_thread_ends_its_loop(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.nodes.run(threaded_tap.make_topic(topic, 2))
    puller = Puller(threaded_tap.address, topic)
    puller.open()
    loop = threading.Thread(target=lambda: list(puller))
    loop.start()
    puller.close()
    loop.join(60)
    assert not loop.is_alive()


def test_a_forgotten_close_does_not_hang_the_exit(threaded_tap: Gateway, topic: str) -> None:
    done = run_python(
        """
        from duetime import Producer, Puller
        producer = Producer()
        producer.send("orders", b"x")
        puller = Puller(topic="orders")
        print(puller.poll(wait="30s")[0].body)
        import threading
        threading.Thread(target=lambda: list(puller), daemon=True).start()
        """.replace("orders", topic),
        threaded_tap.address,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'x'\n", "")


def test_a_forked_child_makes_ids_and_connections_of_its_own(threaded_tap: Gateway, topic: str) -> None:
    done = run_python(
        """
        import os
        from duetime import Producer
        from duetime.client.ids import new_id
        mine = new_id()
        if os.fork() == 0:
            with Producer() as producer:
                producer.send("orders", b"from the child", id=new_id())
            os._exit(0)
        _, status = os.wait()
        print(status, mine)
        """.replace("orders", topic),
        threaded_tap.address,
    )
    status, mine = done.stdout.split()
    assert (status, done.returncode) == ("0", 0)
    (theirs,) = [message.id for request in threaded_tap.sends for message in messages_of(request)]
    assert theirs[:20] != mine[:20]


def test_ctrl_c_at_any_moment_leaves_the_rest_usable(threaded_tap: Gateway, topic: str) -> None:
    """Interrupts fall wherever a call is just then, in the locks that it takes too."""
    with Producer(threaded_tap.address) as producer:
        producer.send(topic, b"first", queue=0)
    done = run_python(
        """
        import random, signal
        from duetime import Producer, Puller
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        interrupted = 0
        with Producer() as producer, Puller(topic="orders", start="latest") as puller:
            for _ in range(3_000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-4))
                    puller.poll(wait="1ms")
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
            producer.send("orders", b"x", queue=0)
            print(interrupted > 100, puller.poll(wait="30s")[0].body)
        """.replace("orders", topic),
        threaded_tap.address,
    )
    assert (done.returncode, done.stdout) == (0, "True b'x'\n"), done.stderr


def test_ctrl_c_at_any_moment_of_a_send_leaves_other_threads_sending(threaded_tap: Gateway, topic: str) -> None:
    """The interrupted thread may have been the one that was to call the event loop for the others."""
    done = run_python(
        """
        import random, signal, threading
        from duetime import Producer
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        interrupted, stopped, counts = 0, threading.Event(), [0] * 4
        def work(number):
            while not stopped.is_set():
                producer.send("orders", b"x")
                counts[number] += 1
        with Producer() as producer:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(1_500):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3))
                    producer.send("orders", b"x")
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
            before = list(counts)
            producer.send("orders", b"x")
            stopped.set()
            for thread in threads:
                thread.join(60)
            print(interrupted > 100, min(before) > 0, any(thread.is_alive() for thread in threads))
        """.replace("orders", topic),
        threaded_tap.address,
    )
    assert (done.returncode, done.stdout) == (0, "True True False\n"), done.stderr


def test_an_interrupted_send_that_was_not_taken_is_not_sent(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address) as producer:
        handing = producer._client._threads._bridge
        calls = []

        def interrupted(take: Callable[[], None]) -> None:
            calls.append(take)
            if len(calls) == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            handing.send(Message(topic, b"interrupted"), interrupted)
        # It calls the loop for others that may rely on it.
        assert len(calls) == 2
        background.call(calls[1])
        producer.send(topic, b"next")
    assert bodies_of(threaded_tap.sends) == [b"next"]


def release(tap: Gateway) -> None:
    async def within() -> None:
        tap.release()

    tap.nodes.run(within())


def test_close_waits_for_the_sends_of_other_threads_and_refuses_more(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.hold(*SENDS)
    producer = Producer(threaded_tap.address)
    with ThreadPoolExecutor(8) as threads:
        sending = [threads.submit(producer.send, topic, b"x") for _ in range(4)]
        threaded_tap.nodes.run(threaded_tap.until_sends(1))
        closing = threads.submit(producer.close)
        release(threaded_tap)
        assert len({one.result(60).message_id for one in sending}) == 4
        closing.result(60)
    with pytest.raises(Closed, match="the producer is closed"):
        producer.send(topic, b"x")


def test_sends_of_threads_wait_for_room_and_are_overloaded_without_it(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.hold(*SENDS)
    with Producer(threaded_tap.address, max_pending=1, timeout="60s") as producer, ThreadPoolExecutor(4) as threads:
        first = threads.submit(producer.send, topic, b"x")
        threaded_tap.nodes.run(threaded_tap.until_sends(1))
        second = threads.submit(producer.send, topic, b"y")
        release(threaded_tap)
        assert first.result(60).message_id != second.result(60).message_id
    with Producer(threaded_tap.address, max_pending=1, timeout="50ms") as producer:
        assert producer._client._capacity.try_acquire(1, 0)
        with pytest.raises(Overloaded, match=r"no send capacity within 0\.05 s"):
            producer.send(topic, b"x")


def test_a_malformed_message_is_refused_in_its_thread(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address) as producer:
        with pytest.raises(InvalidMessage, match="delay"):
            producer.send(topic, b"x", delay="1x")
        producer.send(topic, b"y")
    assert len(threaded_tap.sends) == 1


def test_no_message_to_cancel_is_a_type_error(threaded_tap: Gateway) -> None:
    with (
        Producer(threaded_tap.address) as producer,
        pytest.raises(TypeError, match="None is not a receipt, a found message, an id"),
    ):
        producer.cancel(None)  # type: ignore[call-overload]
