"""Whether a token's secret fits its hash: computed on one thread at a time, and remembered by a keyed fast hash.

A right token costs a hash once in a process's life, and a fast hash of some 1 us in each call. Wrong ones are
remembered too; whoever makes up others waits behind those of their own host, and takes one processor at most.
"""

import asyncio
import secrets
from hashlib import blake2b

from duetime_core.seats import Seats

from duetime_gateway.access.tokens import fits

# Answers that are remembered; the oldest go first.
ANSWERS_MAX = 16_384
# Secrets that wait for their hash, and those of one host among them.
WAITING_MAX, WAITING_OF_HOST_MAX = 64, 16


class Fingerprints:
    """Short names of tokens that only this process can make."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, text: str) -> bytes:
        return blake2b(text.encode(), digest_size=16, key=self._key).digest()


class Verifier:
    """See the module."""

    def __init__(self) -> None:
        self._answers: dict[tuple[bytes, str], bool] = {}
        self._running: dict[tuple[bytes, str], asyncio.Future[bool]] = {}
        self._waiting = Seats(WAITING_MAX, "tokens wait for their check", share=WAITING_OF_HOST_MAX)
        self._turn = asyncio.Lock()

    async def fits(self, fingerprint: bytes, secret: str, hashed: str, host: str) -> bool:
        """Whether a secret, which is all that its fingerprint stands for, is that of the hash.

        Raises:
            Overloaded: too many others are asked about.
        """
        question = fingerprint, hashed
        known = self._answers.get(question)
        if known is not None:
            return known
        running = self._running.get(question)
        if running is None:
            return await self._ask(question, secret, host)
        # Another call of the same caller was first.
        await asyncio.wait({running})
        if running.cancelled():
            return await self.fits(fingerprint, secret, hashed, host)
        return running.result()

    async def _ask(self, question: tuple[bytes, str], secret: str, host: str) -> bool:
        self._waiting.take(host)
        running = self._running[question] = asyncio.get_running_loop().create_future()
        try:
            async with self._turn:
                answer = await asyncio.to_thread(fits, secret, question[1])
            running.set_result(answer)
        finally:
            running.cancel()
            del self._running[question]
            self._waiting.give(host)
        if len(self._answers) >= ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[question] = answer
        return answer
