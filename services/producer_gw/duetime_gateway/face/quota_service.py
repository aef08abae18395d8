"""The Gateway's gRPC surface for quotas."""

from typing import Any

import grpc
from duetime.v1 import quotas_pb2 as pb

from duetime_gateway.face.callers import Context
from duetime_gateway.quotas.admission import check_of, check_quota
from duetime_gateway.quotas.keeper import QuotaKeeper
from duetime_gateway.quotas.limits import FIELDS, TOPIC, USER, Limits, QuotaOwner
from duetime_gateway.quotas.quotas import Quotas


class QuotaService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, quotas: Quotas, keeper: QuotaKeeper) -> None:
        self._quotas = quotas
        self._keeper = keeper

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "SetQuota": unary(self.set, pb.SetQuotaRequest.FromString, pb.Quota.SerializeToString),
            "ListQuotas": unary(self.list, pb.ListQuotasRequest.FromString, pb.ListQuotasResponse.SerializeToString),
            "RemoveQuota": unary(
                self.remove, pb.RemoveQuotaRequest.FromString, pb.RemoveQuotaResponse.SerializeToString
            ),
        }

    async def set(self, request: pb.SetQuotaRequest, context: Context) -> pb.Quota:
        of = _of(request.quota.of)
        limits = check_quota(of, {name: getattr(request.quota, name) for name in FIELDS})
        await self._keeper.set(of, limits)
        return _quota(of, limits)

    async def list(self, request: pb.ListQuotasRequest, context: Context) -> pb.ListQuotasResponse:
        of = _of(request.of)
        if request.HasField("of"):
            check_of(of)
        await self._keeper.refresh()
        quotas = self._quotas
        used = quotas.used_by_all()
        # Users come first.
        wanted = sorted(quotas.limits, key=lambda one: (one.kind != USER, one.name))
        found = [_use(one, quotas.limits[one], used[one]) for one in wanted if not request.HasField("of") or one == of]
        return pb.ListQuotasResponse(quotas=found, gateway_count=1 + len(quotas.others))

    async def remove(self, request: pb.RemoveQuotaRequest, context: Context) -> pb.RemoveQuotaResponse:
        of = _of(request.of)
        check_of(of)
        await self._keeper.remove(of)
        return pb.RemoveQuotaResponse()


def _of(of: pb.QuotaOf) -> QuotaOwner:
    kind = of.WhichOneof("of") or ""
    return QuotaOwner(kind, of.user if kind == USER else of.topic if kind == TOPIC else "")


def _quota(of: QuotaOwner, limits: Limits) -> pb.Quota:
    name: Any = {of.kind: of.name}
    return pb.Quota(of=pb.QuotaOf(**name), **{name: getattr(limits, name) for name in FIELDS})


def _use(of: QuotaOwner, limits: Limits, used: Any) -> pb.QuotaUse:
    return pb.QuotaUse(
        quota=_quota(of, limits),
        messages_per_s=used["messages_per_s"],
        bytes_per_s=used["bytes_per_s"],
        connections=int(used["connections"]),
        streams=int(used["streams"]),
        pending_count=int(used["pending_count"]),
        pending_bytes=int(used["pending_bytes"]),
    )
