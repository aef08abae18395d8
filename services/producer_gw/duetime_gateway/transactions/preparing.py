"""Prepares half messages: a Send whose records are the half topic's."""

from duetime_gateway.sending.drafts import Caller, HalfRequest
from duetime_gateway.sending.encoding import half_properties
from duetime_gateway.sending.outcomes import Outcomes
from duetime_gateway.sending.sender import Sender
from duetime_gateway.transactions.admission import check_prepare
from duetime_gateway.transactions.producers import ProducerGroups


class Preparer:
    """Takes requests to prepare, whatever protocol they came by."""

    def __init__(self, sender: Sender, groups: ProducerGroups) -> None:
        self._sender = sender
        self._groups = groups

    async def prepare(self, request: HalfRequest, caller: Caller) -> Outcomes:
        """What happened to each message: `offsets` are those of the half topic, `due_at_ms` their first checks.

        Raises:
            InvalidArgument: the request as a whole is refused. Anything less is a fault of single messages.
            Overloaded: too many bytes of other requests are in work.
            Unavailable: the group is new, and the metadata database does not answer.
        """

        async def halves(wait_ms: float) -> bytes:
            group, check_immunity_s = request.transactions()
            check_prepare(group, check_immunity_s)
            await self._groups.ensure(group, wait_ms)
            return half_properties(group, check_immunity_s)

        outcome = await (await self._sender.begin(request, caller, halves=halves)).outcome()
        assert isinstance(outcome, Outcomes), "half messages are encoded one by one"
        return outcome
