#!/bin/sh
# taskiq 0.13.0 learns of a new schedule once a minute, and reads a naive time as UTC.
#
# A scheduler that runs by its defaults looks at its source once a minute. A task for 1.5 s from now is sent up to a
# minute late. In New York, a task for `datetime.now() + timedelta(hours=1)` is sent at the same look: that wall time is
# past in UTC.
#
# Consequence: short delays need `--update-interval`, and times need a zone.
#
# Output: Redis server v=7.0.15
#         0.13.0 taskiq-redis 1.2.4 Python 3.11.7
#         due in 1.5 s: sent 59 s late; naive, in an hour: sent at once
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check taskiq==0.13.0 taskiq-redis==1.2.4 redis==8.1.0 tzdata==2025.2
. "$(dirname "$0")/redis.sh"
cd "$folder"
cat >example.py <<'PROGRAM'
from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

broker = ListQueueBroker("unix:redis.sock")
source = ListRedisScheduleSource("unix:redis.sock")
scheduler = TaskiqScheduler(broker, [source])


@broker.task
async def note() -> None: ...
PROGRAM
TZ=America/New_York "$folder/venv/bin/python" - <<'PROGRAM'
import asyncio
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

sys.path.insert(0, "")
from example import broker, note, source
from redis import Redis


async def main() -> None:
    sent = Redis(unix_socket_path="redis.sock")
    await broker.startup()
    await source.startup()
    # The first look follows each start, so a task sent by it proves that the scheduler runs.
    await note.schedule_by_time(source, datetime.now(UTC))
    with open("scheduler.log", "w") as log:
        command = [f"{sys.prefix}/bin/taskiq", "scheduler", "example:scheduler"]
        scheduler = subprocess.Popen(command, stdout=log, stderr=log)
    end = time.monotonic() + 240
    try:
        while sent.llen("taskiq") < 1 and time.monotonic() < end:
            await asyncio.sleep(0.1)
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        await note.schedule_by_time(source, due)
        await note.schedule_by_time(source, datetime.now() + timedelta(hours=1))
        while sent.llen("taskiq") < 2 and time.monotonic() < end:
            await asyncio.sleep(0.1)
        late_s = (datetime.now(UTC) - due).total_seconds()
        while sent.llen("taskiq") < 3 and time.monotonic() < end:
            await asyncio.sleep(0.1)
    finally:
        scheduler.terminate()
        scheduler.wait()
    naive = "sent at once" if sent.llen("taskiq") == 3 else "not sent"
    print(f"due in 1.5 s: sent {late_s:.0f} s late; naive, in an hour: {naive}")
    assert late_s > 30 and naive == "sent at once", "changed"
    await source.shutdown()
    await broker.shutdown()


print(version("taskiq"), "taskiq-redis", version("taskiq-redis"), "Python", platform.python_version())
asyncio.run(main())
PROGRAM
