"""Charges of all calls of RocketMQ's clients, for quotas: the counterpart of face.charges."""

from collections.abc import Mapping

from duetime_gateway.quotas.charges import RECORD, SENDS, STORES_NOTHING, Charge, Rate
from duetime_gateway.quotas.quotas import CopyCharge

CHARGES: Mapping[str, Rate] = {
    "SendMessage": SENDS,
    # The body's size comes from the call (Call.stored_bytes): RocketMQ's answer lacks it.
    "ForwardMessageToDeadLetterQueue": Charge(copies=lambda _: (CopyCharge(),)),
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
