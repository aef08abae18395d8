"""Rules for quotas to be set. Pure."""

from collections.abc import Mapping
from typing import Any

from duetime_core.errors import Violation, refuse
from duetime_core.metadata.models import USER_CHARS_MAX
from duetime_format.admission import topic_violations
from duetime_format.errors import within
from duetime_format.texts import shown

from duetime_gateway.quotas.limits import EVERYBODY, OF_TOPICS, OF_USERS, QUOTA_MAX, TOPIC, USER, Limits, QuotaOwner


def check_of(of: QuotaOwner) -> None:
    """Checks the owner of a quota. Raises: InvalidArgument."""
    found = list(topic_violations("of.topic", of.name)) if of.kind == TOPIC else []
    if not of.kind:
        found.append(Violation("of", "names neither a user nor a topic"))
    if of.kind == USER and not 1 <= len(of.name) <= USER_CHARS_MAX:
        found.append(Violation("of.user", f"{shown(of.name)} is not 1 to {USER_CHARS_MAX} characters long"))
    refuse(found)


def check_quota(of: QuotaOwner, given: Mapping[str, Any]) -> Limits:
    """Returns the limits. Raises: InvalidArgument: they break rules, or none is set."""
    check_of(of)
    found = [one for name, value in given.items() for one in within(name, value, 0, QUOTA_MAX)]
    strange = OF_TOPICS if of.kind == USER else OF_USERS
    found += [Violation(name, f"is not a limit of a {of.kind}") for name in strange if given[name]]
    if given["per_host"] and of != QuotaOwner(USER, EVERYBODY):
        found.append(Violation("per_host", f"is for the quota of {EVERYBODY} only"))
    for burst, rate in (("burst_messages", "messages_per_s"), ("burst_bytes", "bytes_per_s")):
        if given[burst] and not given[rate]:
            found.append(Violation(burst, f"is set without {rate}"))
    if not any(value for name, value in given.items() if name != "per_host"):
        found.append(Violation("quota", "sets no limit; remove it instead"))
    refuse(found)
    return Limits(**given)
