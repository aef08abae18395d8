"""Charges of all calls of RocketMQ's clients, for quotas: the table beside that of `duetime.v1` (face.charges)."""

from collections.abc import Mapping

from duetime_gateway.quotas.charges import RECORD, SENDS, STORES_NOTHING, Charge, Rate
from duetime_gateway.quotas.quotas import Copy

CHARGES: Mapping[str, Rate] = {
    "SendMessage": SENDS,
    # The call, and no answer of RocketMQ's, has the size of the body (Call.stored_bytes).
    "ForwardMessageToDeadLetterQueue": Charge(copies=lambda _: (Copy(),)),
    **dict.fromkeys(("ReceiveMessage", "AckMessage", "ChangeInvisibleDuration"), RECORD),
    **dict.fromkeys(("EndTransaction", "RecallMessage"), RECORD),
    **dict.fromkeys(
        (
            *("QueryRoute", "QueryAssignment", "Heartbeat", "Telemetry", "NotifyClientTermination"),
            "SyncLiteSubscription",
        ),
        STORES_NOTHING,
    ),
}
