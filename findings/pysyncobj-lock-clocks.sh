#!/bin/sh
# PySyncObj 0.3.17: a member whose clock is ahead releases the locks of all others.
#
# `ReplLockManager(autoUnlockTime)` documents that a lock is released "if no response from holder for more than
# autoUnlockTime seconds". Each member renews its locks in a replicated call with its own local time, and the same
# call removes each lock that is older by that time. Here three members agree on the order of all calls and an
# autoUnlockTime of 40 s. The third has a clock 50 s ahead and asks for no lock. The holder, which renews each 10 s,
# loses its lock, and the second member takes it. With right clocks it is kept.
#
# Consequence: two members work at once, although none has failed and a majority agreed.
# Remedy: an autoUnlockTime longer than any difference of clocks, or fencing by a number that grows.
#
# Output: 0.3.17 Python 3.11.7
#         third clock right: the holder has its lock after 30 s, the second member is refused
#         third clock 50 s ahead: the holder loses its lock within 30 s, the second member takes it
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pysyncobj==0.3.17
cat >member.py <<'PROGRAM'
import sys
import time

AHEAD_S = int(sys.argv[1])
real = time.time
time.time = lambda: real() + AHEAD_S

from pysyncobj import SyncObj, SyncObjConf  # noqa: E402
from pysyncobj.batteries import ReplLockManager  # noqa: E402

own, *others = sys.argv[2:]
lock = ReplLockManager(autoUnlockTime=40, selfID=own)
settings = SyncObjConf(raftMinTimeout=2, raftMaxTimeout=4, connectionTimeout=20)
member = SyncObj(own, others, consumers=[lock], conf=settings)
while not member.isReady():
    time.sleep(0.05)
print("ready", flush=True)
for line in sys.stdin:
    took = lock.tryAcquire("job", sync=True, timeout=60) if line == "take\n" else lock.isAcquired("job")
    print(took, flush=True)
member.destroy()
lock.destroy()
PROGRAM
cat >clocks.py <<'PROGRAM'
import platform
import socket
import subprocess
import sys
import time
from importlib.metadata import version


def addresses() -> list[str]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in taken]
    for one in taken:
        one.close()
    return found


def outcome(ahead_s: int) -> tuple[str, str]:
    """Whether the holder has its lock after 30 s, and whether the second member then takes it."""
    names = addresses()
    members = []
    for name, clock in zip(names, (0, 0, ahead_s), strict=True):
        command = [sys.executable, "member.py", str(clock), name, *(other for other in names if other != name)]
        members.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def ask(number: int, words: str) -> str:
        members[number].stdin.write(words + "\n")
        members[number].stdin.flush()
        return members[number].stdout.readline().strip()

    try:
        for member in members:
            assert member.stdout.readline() == "ready\n"
        assert ask(0, "take") == "True"
        end = time.monotonic() + 30
        while (held := ask(0, "look")) == "True" and time.monotonic() < end:
            time.sleep(0.1)
        return held, ask(1, "take")
    finally:
        for member in members:
            member.kill()
            member.wait()


print(version("pysyncobj"), "Python", platform.python_version())
kept = outcome(0)
assert kept == ("True", "False"), f"changed: {kept}"
print("third clock right: the holder has its lock after 30 s, the second member is refused", flush=True)
lost = outcome(50)
assert lost == ("False", "True"), f"changed: {lost}"
print("third clock 50 s ahead: the holder loses its lock within 30 s, the second member takes it")
PROGRAM
venv/bin/python clocks.py
