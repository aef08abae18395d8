"""A relay as a process that kills itself at a step of its second round: python -m tests.outbox.killed URL SERVER STEP.

claimed    the claim is committed
asked      the server has been asked about old rows
sending    the messages are on their way, and nobody waits for the answer
sent       the server has answered
settling   the rows are settled, and that is not committed
settled    it is committed
never      somebody else kills it
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from duetime.client.sending.producer import AsyncProducer
from duetime.outbox import Outbox, Relay
from sqlalchemy import MetaData, create_engine

STEPS = ("claimed", "asked", "sending", "sent", "settling", "settled")
# Long leases and calls: on a slow machine a round that lasts must not lose its rows.
OPTIONS: dict[str, Any] = {"timeout": "20s", "lease": "100s", "poll": "20ms", "batch": 50}
ROUND = 2
# How long a request is on its way before the process dies.
SENDING_S = 0.002


class Killed(Relay):
    def __init__(self, step: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._dies_at, self._passed = step, 0
        settle = self._rows.settle

        def settle_and_die(*values: Any) -> None:
            settle(*values)
            self.reach("settling")

        self._rows.settle = settle_and_die  # type: ignore[method-assign]

    def reach(self, step: str) -> None:
        if step == self._dies_at:
            self._passed += 1
            if self._passed == ROUND:
                os.kill(os.getpid(), signal.SIGKILL)

    async def _claim(self, claim: str) -> Any:
        claimed = await super()._claim(claim)
        if claimed[0]:
            self.reach("claimed")
        return claimed

    async def _ask(self, *arguments: Any) -> Any:
        answer = await super()._ask(*arguments)
        self.reach("asked")
        return answer

    async def _settle(self, *arguments: Any) -> None:
        self.reach("sent")
        await super()._settle(*arguments)
        self.reach("settled")


def dying_on_the_way(relay: Killed) -> Callable[..., Any]:
    send_many = AsyncProducer.send_many

    async def send(*arguments: Any, **options: Any) -> Any:
        task = asyncio.ensure_future(send_many(*arguments, **options))
        await asyncio.wait([task], timeout=SENDING_S)
        relay.reach("sending")
        return await task

    return send


if __name__ == "__main__":
    url, server, step = sys.argv[1:]
    relay = Killed(step, create_engine(url), server, outbox=Outbox(MetaData()), **OPTIONS)
    AsyncProducer.send_many = dying_on_the_way(relay)  # type: ignore[method-assign]
    print("running", flush=True)
    relay.run()
