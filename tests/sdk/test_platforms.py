"""The client on a system without optional modules, such as Windows: faked in a separate process.

`tests/tidy/test_platforms.py` lists these modules.
"""

from tests.sdk.gateway import Gateway
from tests.sdk.running import run_python
from tests.tidy.test_platforms import MODULES, OF_OS, OF_SIGNAL

FAKED = f"""
import asyncio, multiprocessing, os, signal, subprocess, sys
# What is not ours knows the real system.
import google.protobuf.message, grpc.aio, rich.table, shutil, tempfile, typer

for module, names in ((os, {sorted(OF_OS)}), (signal, {sorted(OF_SIGNAL)})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in {sorted(MODULES)}:
    sys.modules[name] = None

def lacking(self, *arguments):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = lacking
asyncio.SelectorEventLoop.remove_signal_handler = lacking
"""


def test_client_works_and_drains_on_ctrl_c(threaded_tap: Gateway, topic: str) -> None:
    code = f"""{FAKED}
sys.platform = "win32"
import duetime
for name in duetime.__all__:
    getattr(duetime, name)
from duetime import *
with Producer() as producer:
    producer.send("orders", {{"number": 42}})
consumer = Consumer(group="billing")

@consumer.handler("orders", body=dict)
async def handle(body):
    print(body, flush=True)
    signal.raise_signal(signal.SIGINT)

consumer.run()
print("drained", signal.getsignal(signal.SIGINT) is signal.default_int_handler, consumer.stats.handled)
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == ["{'number': 42}", "drained True 1"]


def test_command_works(threaded_tap: Gateway, topic: str) -> None:
    code = f"""{FAKED}
from duetime.cli.app import run
assert run(["send", "orders", "cancel 42"]) == 0
assert run(["consume", "orders", "--group", "billing", "--exec", "cat", "--count", "1"]) == 0
"""
    done = run_python(code.replace("orders", topic), threaded_tap.address)
    assert done.returncode == 0, done.stderr
    assert "cancel 42" in done.stdout
