#!/bin/sh
# saq 0.26.4 turns the record of a finished job to "aborting".
#
# `abort` of a job that has completed returns None, and the stored status changes from complete to aborting.
#
# Consequence: after a late abort the record no longer says that the job was done.
#
# Output: Redis server v=7.0.15
#         0.26.4 Python 3.11.7
#         abort of a finished job: complete before, None returned, aborting after
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check saq==0.26.4 'redis<6' typing-extensions
. "$(dirname "$0")/redis.sh"
cd "$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM' || { cat "$folder/log" >&2; exit 1; }
import asyncio
import platform
from importlib.metadata import version

from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue


async def quick(context: object) -> str:
    return "done"


async def main() -> None:
    queue = RedisQueue(Redis(unix_socket_path="redis.sock"))
    worker = Worker(queue, functions=[quick])
    running = asyncio.create_task(worker.start())
    job = await queue.enqueue("quick")
    assert job
    await job.refresh(60)
    before = job.status.value
    answer = await job.abort("too late")
    found = await queue.job(job.key)
    assert found
    print(f"abort of a finished job: {before} before, {answer} returned, {found.status.value} after")
    assert (before, answer, found.status.value) == ("complete", None, "aborting"), "changed"
    await worker.stop()
    running.cancel()


print(version("saq"), "Python", platform.python_version())
asyncio.run(main())
PROGRAM
