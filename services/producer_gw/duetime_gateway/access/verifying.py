"""Checks token secrets against their hashes: one at a time on a thread, with results cached under a fast keyed hash.

A valid token costs one slow hash per process, then a fast hash of some 1 us per call. Results of wrong tokens are
cached too; a host that sends invented tokens waits behind its own earlier ones and occupies at most one processor.
"""

import asyncio
import secrets
from hashlib import blake2b

from duetime_core.limits.seats import Seats

from duetime_gateway.access.tokens import fits

# Cached results; the oldest are evicted first.
ANSWERS_MAX = 16_384
# Secrets waiting for their hash, in total and per host.
WAITING_MAX, WAITING_OF_HOST_MAX = 64, 16


class Fingerprints:
    """Short keyed hashes of tokens; only this process can compute them."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, text: str) -> bytes:
        return blake2b(text.encode(), digest_size=16, key=self._key).digest()


class Verifier:
    """See the module."""

    def __init__(self) -> None:
        self._answers: dict[tuple[bytes, str], bool] = {}
        self._running: dict[tuple[bytes, str], asyncio.Future[bool]] = {}
        self._waiting = Seats(WAITING_MAX, "tokens are waiting for verification", share=WAITING_OF_HOST_MAX)
        self._turn = asyncio.Lock()

    async def fits(self, fingerprint: bytes, secret: str, hashed: str, host: str) -> bool:
        """Whether the secret, represented by its fingerprint, has this hash.

        Raises:
            Overloaded: too many secrets are waiting.
        """
        question = fingerprint, hashed
        known = self._answers.get(question)
        if known is not None:
            return known
        running = self._running.get(question)
        if running is None:
            return await self._ask(question, secret, host)
        # Another call asked the same first.
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
