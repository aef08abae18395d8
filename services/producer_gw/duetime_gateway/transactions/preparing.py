"""Prepares half messages: a Send with records for the half topic."""

from duetime_format.limits import CHECK_IMMUNITY_S_MAX

from duetime_gateway.access.grants import Access, Kind, Right
from duetime_gateway.sending.drafts import Caller, HalfRequest
from duetime_gateway.sending.encoding import half_properties
from duetime_gateway.sending.outcomes import AllStored, SendOutcomes
from duetime_gateway.sending.sender import Sender
from duetime_gateway.transactions.admission import check_prepare
from duetime_gateway.transactions.producers import ProducerGroups


class Preparer:
    """Prepares requests of any protocol."""

    def __init__(self, sender: Sender, groups: ProducerGroups) -> None:
        self._sender = sender
        self._groups = groups

    def half_of(self, access: Access, group: str, check_immunity_s: int) -> bytes | None:
        """The properties of a known group's half messages; None: the request needs the full checks."""
        is_right = 0 <= check_immunity_s <= CHECK_IMMUNITY_S_MAX and access.may(Right.SEND, Kind.GROUP, group)
        if not (is_right and self._groups.is_known(group)):
            return None
        return half_properties(group, check_immunity_s)

    async def prepare(self, request: HalfRequest, caller: Caller) -> AllStored | SendOutcomes:
        """Returns the result of each message: `offsets` are those of the half topic, `due_at_ms` their first checks.

        Raises:
            InvalidArgument: the request as a whole is rejected. Other errors are faults of single messages.
            PermissionDenied: the caller has no right to the group.
            Overloaded: other requests in progress have too many bytes.
            Unavailable: the group is new, and the metadata database does not answer.
        """

        async def halves(wait_ms: float) -> bytes:
            group, check_immunity_s = request.transactions()
            check_prepare(group, check_immunity_s)
            caller.access.check(Right.SEND, Kind.GROUP, group)
            await self._groups.ensure(group, caller.sharer, wait_ms)
            return half_properties(group, check_immunity_s)

        return await (await self._sender.begin(request, caller, halves=halves)).outcome()
