"""The synchronous producer and puller, from threads and at the interpreter's exit."""

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from duetime import Closed, Message, NotFound, Producer, Puller, Receipt

from tests.sdk.fake_gateway import FakeGateway


def test_what_is_sent_is_pulled(threaded_gateway: FakeGateway) -> None:
    with Producer(threaded_gateway.address) as producer:
        receipt = producer.send("orders", b"cancel 42", delay="30m", tags="timeout", keys=["42"])
        receipts = producer.send_many([Message("parcels", b"a", delay="5s"), Message("parcels", b"b")])
    assert receipt.deliver_at is not None
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    with Puller(threaded_gateway.address, "orders", start="earliest") as puller:
        (message,) = puller.poll(max=256, wait="10s")
        assert (message.id, message.body, message.keys) == (receipt.message_id, b"cancel 42", ["42"])
        assert message.late_ms == 3


def test_iteration_and_positions_agree(threaded_gateway: FakeGateway) -> None:
    with Producer(threaded_gateway.address) as producer:
        producer.send_many([Message("orders", str(n).encode(), queue=n % 2) for n in range(10)])
    with Puller(threaded_gateway.address, "orders") as puller:
        seen: dict[int, int] = {0: 0, 1: 0}
        for count, message in enumerate(puller, start=1):
            seen[message.queue] = message.offset + 1
            assert puller.positions == seen
            if count == 3:
                break
        rest = puller.poll(wait="10s")
        while len(rest) < 7:
            rest += puller.poll(wait="10s")
        assert puller.positions == {0: 5, 1: 5}


def test_commit_does_not_pass_what_iteration_holds(threaded_gateway: FakeGateway) -> None:
    with Producer(threaded_gateway.address) as producer:
        producer.send_many([Message("orders", str(n).encode(), queue=0) for n in range(10)])
    with Puller(threaded_gateway.address, "orders", group="billing") as puller:
        for count, _ in enumerate(puller, start=1):
            if count == 3:
                break
        puller.commit()
    assert threaded_gateway.offsets["billing", "orders", 0] == 3


def test_threads_share_requests(threaded_gateway: FakeGateway) -> None:
    with Producer(threaded_gateway.address) as producer, ThreadPoolExecutor(32) as threads:
        receipts = list(threads.map(lambda n: producer.send("orders", str(n).encode()), range(200)))
    assert len({receipt.message_id for receipt in receipts}) == 200
    assert len(threaded_gateway.requests) < 200


def test_errors_come_to_the_caller(threaded_gateway: FakeGateway) -> None:
    with pytest.raises(NotFound), Puller(threaded_gateway.address, "none"):
        pass
    producer = Producer(threaded_gateway.address)
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send("orders", b"x")


def test_a_puller_closed_by_another_thread_ends_its_loop(threaded_gateway: FakeGateway) -> None:
    threaded_gateway.make_topic("orders")
    puller = Puller(threaded_gateway.address, "orders")
    puller.open()
    loop = threading.Thread(target=lambda: list(puller))
    loop.start()
    puller.close()
    loop.join(10)
    assert not loop.is_alive()


def run_python(code: str, server: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"DUETIME_SERVER": server},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_forgotten_close_does_not_hang_the_exit(threaded_gateway: FakeGateway) -> None:
    done = run_python(
        """
        from duetime import Producer, Puller
        producer = Producer()
        producer.send("orders", b"x")
        puller = Puller(topic="orders")
        print(puller.poll(wait="10s")[0].body)
        import threading
        threading.Thread(target=lambda: list(puller), daemon=True).start()
        """,
        threaded_gateway.address,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'x'\n", "")


def test_a_forked_child_makes_ids_and_connections_of_its_own(threaded_gateway: FakeGateway) -> None:
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
        """,
        threaded_gateway.address,
    )
    status, mine = done.stdout.split()
    assert (status, done.returncode) == ("0", 0)
    (theirs,) = threaded_gateway.stored
    assert theirs[:20] != mine[:20]


def test_ctrl_c_at_any_moment_leaves_the_rest_usable(threaded_gateway: FakeGateway) -> None:
    """Interrupts fall wherever a call is just then, in the locks that it takes too."""
    with Producer(threaded_gateway.address) as producer:
        producer.send("orders", b"first", queue=0)
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
                    puller.poll(wait=0.0003)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
            producer.send("orders", b"x", queue=0)
            print(interrupted > 100, puller.poll(wait="10s")[0].body)
        """,
        threaded_gateway.address,
    )
    assert (done.returncode, done.stdout) == (0, "True b'x'\n"), done.stderr
