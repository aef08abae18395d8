"""The last delivery and failure of each webhook, for the next write to the metadata database."""

from collections.abc import Mapping
from typing import Any

from duetime_core.clock import Clock

FAILURE_CHARS_MAX = 1_000


class OutcomeReports:
    """Outcomes since the last write."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outcomes: dict[str, dict[str, Any]] = {}

    def delivered(self, name: str) -> None:
        self._of(name)["delivered_at_ms"] = self._clock.now_ms()

    def failed(self, name: str, error: str) -> None:
        self._of(name).update(failed_at_ms=self._clock.now_ms(), failure=error[:FAILURE_CHARS_MAX])

    def take(self) -> list[Mapping[str, Any]]:
        """The outcomes since the last call: columns by name, with the webhook's `name`."""
        taken, self._outcomes = self._outcomes, {}
        return list(taken.values())

    def give_back(self, outcomes: list[Mapping[str, Any]]) -> None:
        """Returns outcomes whose write failed; later ones take precedence."""
        for one in outcomes:
            self._outcomes[one["name"]] = {**one, **self._outcomes.get(one["name"], {})}

    def _of(self, name: str) -> dict[str, Any]:
        return self._outcomes.setdefault(name, {"name": name})
