"""The proof that a dry run was seen: sealed into the form that acts on the counted things."""

import hashlib
import json
from collections.abc import Mapping

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from duetime_core.clock import Clock
from starlette.requests import Request

from duetime_console.session import Viewer

# Validity of a dry run.
PROOF_S = 900


class Proofs:
    """Made and checked by any console with the same secret."""

    def __init__(self, keys: list[bytes], clock: Clock) -> None:
        """`keys`: the same as for sessions."""
        self._seal = MultiFernet([Fernet(key) for key in keys])
        self._clock = clock

    def make(self, viewer: Viewer, action: str, values: Mapping[str, str], count: int) -> str:
        """`values`: the filter of the action; `count`: the number of matches."""
        payload = json.dumps({"about": _about(viewer, action, values), "count": count})
        return self._seal.encrypt_at_time(payload.encode(), self._clock.now_ms() // 1_000).decode()

    def check(self, viewer: Viewer, action: str, values: Mapping[str, str], proof: str) -> int | None:
        """The count of the dry run; None: it was for another filter, or is older than PROOF_S."""
        try:
            payload = json.loads(self._seal.decrypt_at_time(proof.encode(), PROOF_S, self._clock.now_ms() // 1_000))
        except (InvalidToken, ValueError):
            return None
        return int(payload["count"]) if payload["about"] == _about(viewer, action, values) else None


def proofs_of(request: Request) -> Proofs:
    """The proofs of the console that serves the request."""
    proofs: Proofs = request.app.state.proofs
    return proofs


def _about(viewer: Viewer, action: str, values: Mapping[str, str]) -> str:
    payload = json.dumps(["proof", viewer.token, viewer.user, action, sorted(values.items())])
    return hashlib.sha256(payload.encode()).hexdigest()
