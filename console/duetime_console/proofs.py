"""The proof that a dry run was seen: sealed into the form that does what the dry run has counted."""

import hashlib
import json
from collections.abc import Mapping

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from duetime_core.clock import Clock
from starlette.requests import Request

from duetime_console.session import Viewer

# How long a dry run is good for.
PROOF_S = 900


class Proofs:
    """Made and checked by any console with the same secret."""

    def __init__(self, keys: list[bytes], clock: Clock) -> None:
        """`keys`: as those of sessions."""
        self._seal = MultiFernet([Fernet(key) for key in keys])
        self._clock = clock

    def make(self, viewer: Viewer, action: str, values: Mapping[str, str], count: int) -> str:
        """`values`: which things the action is about; `count`: how many of them there were."""
        told = json.dumps({"about": _about(viewer, action, values), "count": count})
        return self._seal.encrypt_at_time(told.encode(), self._clock.now_ms() // 1_000).decode()

    def check(self, viewer: Viewer, action: str, values: Mapping[str, str], proof: str) -> int | None:
        """The count of the dry run; None: it was of something else, or is older than PROOF_S."""
        try:
            told = json.loads(self._seal.decrypt_at_time(proof.encode(), PROOF_S, self._clock.now_ms() // 1_000))
        except (InvalidToken, ValueError):
            return None
        return int(told["count"]) if told["about"] == _about(viewer, action, values) else None


def proofs_of(request: Request) -> Proofs:
    """Those of the console that serves it."""
    proofs: Proofs = request.app.state.proofs
    return proofs


def _about(viewer: Viewer, action: str, values: Mapping[str, str]) -> str:
    told = json.dumps(["proof", viewer.token, viewer.user, action, sorted(values.items())])
    return hashlib.sha256(told.encode()).hexdigest()
