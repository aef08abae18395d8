"""The Gateway's gRPC surface for the audit log."""

from typing import Any

import grpc
from duetime.v1 import audit_pb2 as pb
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_core.metadata import AuditFilter, AuditPlace, AuditRow, AuditTable
from duetime_format.errors import within
from duetime_format.limits import AUDIT_COUNT_DEFAULT, AUDIT_COUNT_MAX

from duetime_gateway.face.callers import Context
from duetime_gateway.rules import INT64_MAX


class AuditService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, table: AuditTable) -> None:
        self._table = table

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        return {
            "ListAuditEvents": grpc.unary_unary_rpc_method_handler(
                self.list, pb.ListAuditEventsRequest.FromString, pb.ListAuditEventsResponse.SerializeToString
            )
        }

    async def list(self, request: pb.ListAuditEventsRequest, context: Context) -> pb.ListAuditEventsResponse:
        found = within("from_ms", request.from_ms, 0, INT64_MAX)
        found += within("before_ms", request.before_ms, 0, INT64_MAX)
        refuse(found + within("max_count", request.max_count, 0, AUDIT_COUNT_MAX))
        wanted = AuditFilter(request.from_ms, request.before_ms, request.user, request.method)
        after = _place(request.page_token) if request.page_token else None
        page = await self._table.page(wanted, request.max_count or AUDIT_COUNT_DEFAULT, after)
        token = f"{page.last.at_ms}.{page.last.id}" if page.last else ""
        return pb.ListAuditEventsResponse(events=map(_message, page.rows), next_page_token=token)


def _place(token: str) -> AuditPlace:
    at_ms, _, number = token.partition(".")
    if not all(part.isascii() and part.isdecimal() and int(part) <= INT64_MAX for part in (at_ms, number)):
        raise InvalidArgument([Violation("page_token", "was not returned by ListAuditEvents")])
    return AuditPlace(int(at_ms), int(number))


def _message(row: AuditRow) -> pb.AuditEvent:
    return pb.AuditEvent(process=row.process, **row.event._asdict())
