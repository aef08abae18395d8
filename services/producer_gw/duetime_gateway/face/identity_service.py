"""The Gateway's gRPC surface for WhoAmI."""

from typing import Any

import grpc
from duetime.v1 import gateway_pb2 as pb

from duetime_gateway.access import permit
from duetime_gateway.face.callers import Context
from duetime_gateway.face.permissions import methods_of


class IdentityService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents the call."""

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        return {
            "WhoAmI": grpc.unary_unary_rpc_method_handler(
                self.who_am_i, pb.WhoAmIRequest.FromString, pb.WhoAmIResponse.SerializeToString
            )
        }

    async def who_am_i(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        access = permit.current()
        rights = [pb.Right(right=one.right, kind=one.kind, pattern=one.pattern) for one in access.grants]
        return pb.WhoAmIResponse(user=access.name, admin=access.is_admin, rights=rights, methods=methods_of(access))
