"""Rules for requests about transactions. Pure.

Each `check_` raises InvalidArgument with all violations. `duetime_format.admission` checks the single messages of a
Prepare.
"""

from duetime.v1 import transactions_pb2 as pb
from duetime_core.errors import Violation, refuse
from duetime_format import limits
from duetime_format.admission import group_violations, topic_violations
from duetime_format.errors import within
from duetime_format.texts import shown

from duetime_gateway.rules import INT64_MAX, check_group

LISTED = (pb.TRANSACTION_STATE_UNSPECIFIED, pb.TRANSACTION_STATE_OPEN, pb.TRANSACTION_STATE_GIVEN_UP)


def check_prepare(group: str, check_immunity_s: int) -> None:
    """See the module."""
    immunity = within("check_immunity_s", check_immunity_s, 0, limits.CHECK_IMMUNITY_S_MAX)
    refuse([*group_violations("group", group), *immunity])


def check_ends(group: str, count: int) -> None:
    """See the module."""
    found = list(group_violations("group", group))
    if not 1 <= count <= limits.ENDS_COUNT_MAX:
        found.append(Violation("ends", f"{count} ends; a request has 1 to {limits.ENDS_COUNT_MAX}"))
    refuse(found)


def check_answers(group: str, watched: str, count: int) -> None:
    """Checks a later request of a stream of checks for the group that it watches."""
    found: list[Violation] = []
    if group not in ("", watched):
        found.append(Violation("group", f"{shown(group)} is not {watched}, the group of this stream"))
    if count > limits.ENDS_COUNT_MAX:
        found.append(Violation("ends", f"{count} ends; a request has at most {limits.ENDS_COUNT_MAX}"))
    refuse(found)


def check_watch(group: str) -> None:
    """See the module."""
    check_group("group", group)


def check_list(request: pb.ListTransactionsRequest) -> None:
    """See the module."""
    found = list(group_violations("group", request.group)) if request.group else []
    found += topic_violations("topic", request.topic, system=True) if request.topic else ()
    if request.state not in LISTED:
        known = {number: name for name, number in pb.TransactionState.items()}
        name = known.get(request.state, str(request.state)).removeprefix("TRANSACTION_STATE_")
        found.append(Violation("state", f"{name} is not listed; OPEN and GIVEN_UP are"))
    found += within("prepared_before_ms", request.prepared_before_ms, 0, INT64_MAX)
    refuse(found + within("page_size", request.page_size, 0, limits.TRANSACTIONS_PAGE_MAX))


def check_get(text: str, topic: str) -> None:
    """Checks the id of a transaction or of its message, and the topic."""
    found = list(topic_violations("topic", topic, system=True)) if topic else []
    most = limits.TRANSACTION_ID_CHARS_MAX
    if not 1 <= len(text) <= most:
        found.append(Violation("id", f"{shown(text)} has {len(text)} characters; an id has 1 to {most}"))
    refuse(found)
