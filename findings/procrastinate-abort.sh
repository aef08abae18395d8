#!/bin/sh
# procrastinate 3.10.0 answers an abort of a running synchronous job with True, and the job runs to the end.
#
# `cancel_job_by_id` is honest without `abort`: False once the job has begun. With `abort=True` it returns True; the job
# stays "doing", runs to the end and is "succeeded". A naive time is rejected: ValueError.
#
# Consequence: True from an abort means that the job was asked to stop. A synchronous job has to look for that itself.
#
# Output: postgres (PostgreSQL) 15.18
#         3.10.0 Python 3.11.7
#         naive time: ValueError
#         running job: cancel False, abort True, doing; it ran to the end: succeeded
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check procrastinate==3.10.0 'psycopg[binary]==3.3.9'
. "$(dirname "$0")/postgresql.sh"
FOLDER=$folder "$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM' || { cat "$folder/log" >&2; exit 1; }
import asyncio
import os
import platform
import threading
from datetime import datetime, timedelta
from importlib.metadata import version

from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=f"host={os.environ['FOLDER']} user=postgres dbname=postgres"))
began, release, ended = threading.Event(), threading.Event(), threading.Event()


@app.task
def slow() -> None:
    began.set()
    release.wait(60)
    ended.set()


async def main() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        try:
            await slow.configure(schedule_at=datetime.now() + timedelta(hours=1)).defer_async()
            naive = "accepted"
        except ValueError:
            naive = "ValueError"
        print(f"naive time: {naive}")
        job = await slow.defer_async()
        worker = asyncio.create_task(app.run_worker_async(wait=False, install_signal_handlers=False))
        assert await asyncio.to_thread(began.wait, 60)
        manager = app.job_manager
        cancelled = await manager.cancel_job_by_id_async(job)
        aborted = await manager.cancel_job_by_id_async(job, abort=True)
        during = (await manager.get_job_status_async(job)).value
        release.set()
        await worker
        after = (await manager.get_job_status_async(job)).value
        print(f"running job: cancel {cancelled}, abort {aborted}, {during}; it ran to the end: {after}")
        outcome = (naive, cancelled, aborted, during, ended.is_set(), after)
        assert outcome == ("ValueError", False, True, "doing", True, "succeeded"), "changed"


print(version("procrastinate"), "Python", platform.python_version())
asyncio.run(main())
PROGRAM
