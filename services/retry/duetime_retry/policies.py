"""The retry policy that applies to a message: its own, else the one sent with its failure, else its group's."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from duetime.v1.message_pb2 import RetryPolicy
from duetime_core.clock import Clock
from duetime_core.metadata import Database, GroupModel
from duetime_core.rpc import retry_policy
from duetime_core.telemetry.logs import sparing
from duetime_format import record
from duetime_format.properties import value_of
from duetime_format.record import Record
from sqlalchemy.orm import Session

log = sparing()

# Time for which a group's policy is cached: a changed one applies everywhere after it.
KEPT_MS = 1_000
_GROUPS_MAX = 16_384
_OWN = record.RETRY.encode()


@dataclass(frozen=True, slots=True)
class RetryRules:
    """The retry rules of a group. A group that was never created has RocketMQ's table as default."""

    policy: RetryPolicy = field(default_factory=lambda: retry_policy.completed(RetryPolicy()))
    ordered: bool = False


class Policies:
    """Rules of groups from the metadata database, cached for a moment."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        # Expiry time and rules, by group.
        self._kept: dict[str, tuple[float, RetryRules]] = {}

    async def of_group(self, group: str) -> RetryRules:
        """The group's rules. While the database does not answer, those read last apply.

        Raises:
            Unavailable: they were never read.
        """
        now_ms = self._clock.monotonic_ms()
        until_ms, rules = self._kept.get(group, (now_ms, None))
        if rules is None:
            return self._keep(group, await self._database.run(_reading(group)))
        if until_ms <= now_ms:
            # Set early for other callers, which need not read them too.
            self._kept[group] = now_ms + KEPT_MS, rules
            await self._database.refresh(_reading(group), lambda row: self._note(group, row))
        return self._kept.get(group, (now_ms, rules))[1]

    def _note(self, group: str, row: GroupModel | None) -> None:
        self._keep(group, row)

    def _keep(self, group: str, row: GroupModel | None) -> RetryRules:
        rules = RetryRules()
        if row is not None:
            rules = RetryRules(parsed(row.retry) or rules.policy, row.ordered)
        if len(self._kept) >= _GROUPS_MAX:
            self._kept.clear()
        self._kept[group] = self._clock.monotonic_ms() + KEPT_MS, rules
        return rules


def _reading(group: str) -> Callable[[Session], GroupModel | None]:
    return lambda session: session.get(GroupModel, group)


def policy_for(found: Record, sent: RetryPolicy | None, group: RetryPolicy, max_attempts: int) -> RetryPolicy:
    """The policy of a failed message, complete. `sent`: the one sent with the failure; `max_attempts`: that of the
    lease, the receiver's or the group's."""
    text = value_of(found.properties, _OWN)
    own = parsed(text.decode("utf-8", "replace")) if text else None
    if own is not None:
        return own
    policy = RetryPolicy()
    policy.CopyFrom(group if sent is None else sent)
    if sent is None or not sent.max_attempts:
        policy.max_attempts = max_attempts or group.max_attempts
    return retry_policy.completed(policy)


@lru_cache(maxsize=4_096)
def parsed(text: str) -> RetryPolicy | None:
    """The complete policy; None, with a log line, if the text is not a policy."""
    try:
        return retry_policy.completed(retry_policy.parse(text)) if text else None
    except ValueError as error:
        log.warning("retry policy ignored", reason=str(error))
        return None
