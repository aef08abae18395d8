"""`make torture`: many crashes of a shard; after each, every answered record must be there.

Most are power cuts on a disk in this process: in the middle of writes, flushes, checkpoints and recoveries, with each
unflushed byte and name kept, lost or torn. Every other life cancels, reschedules, replaces and moves pending messages
(tests/store/pending_life.py) beside a topic that is deleted and recreated (deletion_life.py), the others have messages
alone (life.py). After each step of either, counts are compared with a recount of all pending messages. One crash in
twenty is `kill -9` of a real store process under load (test_store_kills.py). POINTS, SEED and MINUTES are environment
variables; the seed determines a run, except for the timing of the real kills.
"""

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import structlog

from tests.crash.test_store_kills import Ledger, kill_round, store_process
from tests.crash.test_store_kills import check as check_process
from tests.store.deletion_life import DeletionLife
from tests.store.life import Life

STEPS = 80
KILLS_SHARE = 20


def one_life(folder: Path, seed: int) -> int:
    """A shard from its first opening on; how many crashes it had."""
    dice, root = random.Random(seed), folder / f"life-{seed}"
    kind = DeletionLife if dice.random() < 0.5 else Life
    life = kind(root, dice, mode=dice.choice(("async", "delayed", "sync", "sync")))
    try:
        for _ in range(STEPS):
            life.random_step()
        life.step(life.answer_all)
        life.step(life.cut_power)
    finally:
        life.close()
    return life.points


async def kill_store(folder: Path, kills: int, dice: random.Random) -> None:
    """Real processes on one directory."""
    ledger = Ledger()
    for _ in range(kills):
        await kill_round(folder, "sync", ledger, dice, restored_min=0)
    ledger.forget_compared()
    async with store_process(folder, "sync") as (_, stub):
        await check_process(stub, ledger)


def main() -> None:
    points, minutes = int(os.environ.get("POINTS", "1000")), float(os.environ.get("MINUTES", "40"))
    seed = int(os.environ.get("SEED", "") or time.time_ns() % 1_000_000_000)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"seed {seed}: {points} crash points, {minutes:g} minutes at most", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="duetime-torture-"))
    give_up = time.monotonic() + minutes * 60
    kills = points // KILLS_SHARE
    done, lives = 0, 0
    try:
        asyncio.run(kill_store(folder / "killed", kills, random.Random(seed)))
        done += kills
        print(f"{done} of {points}: real processes killed, nothing lost", flush=True)
        while done < points:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{done} of {points} points after {minutes:g} minutes")
            done += one_life(folder, seed + lives)
            lives += 1
            shutil.rmtree(folder / f"life-{seed + lives - 1}", ignore_errors=True)
            if lives % 10 == 0:
                print(f"{done} of {points}: {lives} lives, nothing lost", flush=True)
    except Exception:
        traceback.print_exc()
        print(f"FAILED after {done} points; the life that failed: SEED={seed + lives}", flush=True)
        sys.exit(1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{done} crash points, nothing lost; seed {seed}")


if __name__ == "__main__":
    main()
