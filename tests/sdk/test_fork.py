"""Forked processes: calls of a child whose parent had connected by gRPC fail with that reason; others succeed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from duetime import Forked

from tests.blocking import both, compiled_only, grpcio_only
from tests.sdk.gateway import Gateway
from tests.sdk.running import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

# Prints how a child has ended: its exit code, or minus the signal that killed it. One that hangs is killed.
CHILD = """
import asyncio, os, signal, sys
from duetime import *

def in_child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        code = 9
        try:
            work()
            code = 0
        except Forked as error:
            print(error.reason, flush=True)
            code = 3
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

CALLS = {
    "inherited": "lambda: producer.send('orders', b'x')",
    "inherited, many": "lambda: producer.send_many([Message('orders', b'x')] * 40)",
    "inherited, cancel": "lambda: producer.cancel('some-id')",
    "inherited, transaction": "lambda: producer.transaction('orders', b'x', group='g').__enter__()",
    "producer": "lambda: Producer().send('orders', b'x')",
    "puller": "lambda: Puller(topic='orders').poll()",
    "receiver": "lambda: Receiver(topic='orders', group='g').receive()",
    "finder": "lambda: Finder().get('some-id')",
    "admin": "lambda: Admin().topics()",
    "asynchronous": "lambda: asyncio.run(AsyncProducer().send('orders', b'x'))",
    "consumer": "lambda: consumer.run()",
}


@grpcio_only
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_child_of_a_connected_process_gets_an_error(threaded_tap: Gateway, topic: str, call: str) -> None:
    code = f"""{CHILD}
producer = Producer()
producer.send('orders', b'from the parent')
consumer = Consumer(group='billing')
consumer.handler('orders')(lambda message: None)
in_child({call})
producer.send('orders', b'from the parent again')
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["FORKED", "3"], "", 0)
    assert threaded_tap.count(topic) == 2


@both
def test_a_child_leaves_with_blocks_and_ends_as_ever(threaded_tap: Gateway, topic: str) -> None:
    """The child neither closes nor awaits its parent's open objects, also when the interpreter exits."""
    code = """
import os, signal, sys
from duetime import *
with Producer() as producer, Puller(topic='orders') as puller, Receiver(topic='orders', group='billing'):
    producer.send('orders', b'x')
    assert puller.poll(wait='10s')
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        producer.send('orders', b'y')
if pid == 0:
    print('left', producer, flush=True)
"""
    threaded_tap.nodes.run(threaded_tap.make_topic(topic, 2))
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert done.stdout, done.stderr
    assert done.stdout.splitlines()[0].startswith("left Producer(")
    assert (done.stdout.splitlines()[1:], done.stderr, done.returncode) == (["0"], "", 0)
    assert threaded_tap.count(topic) == 2


@both
def test_forked_children_survive_open_clients(threaded_tap: Gateway, topic: str) -> None:
    """By default gRPC's core starts threads in them, of which about one child in four died."""
    code = """
import os, threading
from duetime import *
with Producer() as producer, Puller(topic='orders') as puller:
    producer.send('orders', b'x')
    assert puller.poll(wait='10s')
    codes = set()
    for number in range(20):
        pid = os.fork()
        if pid == 0:
            threading.Thread(target=print).start()
            break
        codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    if pid:
        print(codes)
"""
    threaded_tap.nodes.run(threaded_tap.make_topic(topic, 2))
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert (done.stdout.split("\n")[-2], done.stderr) == ("{0}", "")


@both
def test_loop_of_the_parent_raises_in_a_child_too(threaded_tap: Gateway, topic: str) -> None:
    code = f"""{CHILD}
loop = asyncio.new_event_loop()
async def make():
    producer = AsyncProducer()
    await producer.send('orders', b'x')
    return producer
producer = loop.run_until_complete(make())
in_child(lambda: loop.run_until_complete(producer.send('orders', b'y')))
in_child(lambda: loop.run_until_complete(producer.close()))
loop.run_until_complete(producer.close())
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["FORKED", "3", "0"], "", 0)


@grpcio_only
def test_unused_clients_work_on_both_sides_of_a_fork(threaded_tap: Gateway, topic: str) -> None:
    code = f"""{CHILD}
producer = Producer()
in_child(lambda: producer.send('orders', b'child'))
in_child(lambda: in_child(lambda: producer.send('orders', b'grandchild')))
producer.send('orders', b'parent')
in_child(lambda: in_child(lambda: producer.send('orders', b'too late')))
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert (done.stdout.split(), done.stderr) == (["0", "0", "0", "FORKED", "3", "0"], "")
    assert threaded_tap.count(topic) == 3


PROGRAM = """
import multiprocessing, sys
from duetime import Forked, Producer

producer = Producer()

def send(number):
    return producer.send("orders", b"%d" % number).message_id

if __name__ == "__main__":
    send(0)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        try:
            print(len(set(pool.map(send, range(4)))))
        except Forked as error:
            print(error)
"""


@grpcio_only
@pytest.mark.parametrize(
    ("method", "printed", "count"),
    [("fork", "this process was forked from one connected", 1), ("spawn", "4", 5), ("forkserver", "4", 5)],
)
def test_pools_of_multiprocessing(
    threaded_tap: Gateway, topic: str, tmp_path: Path, method: str, printed: str, count: int
) -> None:
    check_pool(threaded_tap, topic, tmp_path, method, printed, count)


@compiled_only
def test_a_forked_pool_sends_with_the_compiled_client(threaded_tap: Gateway, topic: str, tmp_path: Path) -> None:
    check_pool(threaded_tap, topic, tmp_path, "fork", "4", 5)


def check_pool(tap: Gateway, topic: str, tmp_path: Path, method: str, printed: str, count: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("orders", topic))
    done = subprocess.run(
        [sys.executable, str(program), method],
        env=os.environ | {"DUETIME_SERVER": tap.address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(printed)
    assert tap.count(topic) == count


@compiled_only
@pytest.mark.parametrize("call", ["inherited", "inherited, many", "producer", "asynchronous"])
def test_a_child_of_a_process_with_the_compiled_client_has_its_own_connection(
    threaded_tap: Gateway, topic: str, call: str
) -> None:
    code = f"""{CHILD}
producer = Producer()
producer.send('orders', b'parent')
in_child({CALLS[call]})
producer.send('orders', b'parent')
in_child(lambda: in_child({CALLS[call]}))
producer.send('orders', b'parent')
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["0", "0", "0"], "", 0)
    assert threaded_tap.count(topic) == (83 if call == "inherited, many" else 5)


@compiled_only
def test_children_forked_during_a_send_of_another_thread_send_and_close(threaded_tap: Gateway, topic: str) -> None:
    code = f"""{CHILD}
import threading
producer, ended, sent = Producer(), threading.Event(), 0
def send():
    global sent
    while not ended.is_set():
        producer.send('orders', b'parent')
        sent += 1
def child():
    producer.send('orders', b'child')
    producer.close()
thread = threading.Thread(target=send)
thread.start()
for _ in range(20):
    in_child(child)
ended.set()
thread.join()
producer.close()
print(sent)
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    *codes, sent = done.stdout.split()
    assert (codes, done.stderr) == (["0"] * 20, "")
    assert threaded_tap.count(topic) == 20 + int(sent)


def test_error_is_no_reason_to_try_again() -> None:
    assert not Forked("x").retriable
    assert signal.SIGALRM  # ends children that hang
