"""All gRPC services of the gateway's port."""

import grpc

from duetime_gateway.face.analysis_service import AnalysisService
from duetime_gateway.face.audit_service import AuditService
from duetime_gateway.face.batches import BatchService
from duetime_gateway.face.consumer_service import ConsumerService
from duetime_gateway.face.gate import Gate
from duetime_gateway.face.guards import Refused, guarded
from duetime_gateway.face.identity_service import IdentityService
from duetime_gateway.face.lane_service import LaneService
from duetime_gateway.face.pending_service import PendingService
from duetime_gateway.face.quota_service import QuotaService
from duetime_gateway.face.receive_streams import ReceiveStreamService
from duetime_gateway.face.scaler import SERVICE_NAME as SCALER_NAME
from duetime_gateway.face.scaler import Scaler
from duetime_gateway.face.service import GatewayService
from duetime_gateway.face.subscription_service import SubscriptionService
from duetime_gateway.face.transaction_service import TransactionService

SERVICE_NAME = "duetime.v1.Gateway"
SERVICE_NAMES = (SERVICE_NAME, SCALER_NAME)


class Face:
    """`duetime.v1.Gateway`, in its parts, and KEDA's scaler."""

    def __init__(
        self,
        service: GatewayService,
        batches: BatchService,
        consumers: ConsumerService,
        subscriptions: SubscriptionService,
        receive_streams: ReceiveStreamService,
        pending: PendingService,
        transactions: TransactionService,
        analysis: AnalysisService,
        lanes: LaneService,
        quotas: QuotaService,
        audit: AuditService,
        scaler: Scaler,
        gate: Gate,
    ) -> None:
        self._service = service
        self._batches = batches
        self._consumers = consumers
        self._subscriptions = subscriptions
        self._receive_streams = receive_streams
        self._pending = pending
        self._transactions = transactions
        self._analysis = analysis
        self._lanes = lanes
        self._quotas = quotas
        self._audit = audit
        self._scaler = scaler
        self._gate = gate

    def add_to(self, server: grpc.aio.Server, refused: Refused | None) -> None:
        """Registers all calls. `refused`: gets the errors of callers without the right, as checked for each request;
        None: users are off."""
        limited = {
            **self._service.handlers(),
            **self._batches.handlers(),
            **self._consumers.handlers(),
            **self._subscriptions.handlers(),
            **self._receive_streams.handlers(),
            **self._pending.handlers(),
            **self._transactions.handlers(),
            **self._analysis.handlers(),
            **self._lanes.handlers(),
            **self._audit.handlers(),
            **IdentityService().handlers(),
        }
        # Quotas can be changed even by a user without any left.
        handlers = {**self._gate.around(limited), **self._quotas.handlers()}
        if refused is not None:
            handlers = guarded(SERVICE_NAME, handlers, refused)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        self._scaler.add_to(server)

    def end_streams(self) -> None:
        """Ends streams once their requests in progress are answered."""
        self._service.end_streams()
        self._receive_streams.end_streams()
        self._pending.end_streams()
        self._transactions.end_streams()
        self._scaler.end()
