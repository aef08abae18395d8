"""Replaces the behaviour of a call's handler, and keeps its kind and coders."""

from typing import Any

import grpc

Handler = Any  # grpc.RpcMethodHandler, whose class takes no parameters


def behaviour_of(handler: Handler) -> Any:
    """The function that serves the call."""
    if handler.request_streaming:
        return handler.stream_stream
    return handler.unary_stream if handler.response_streaming else handler.unary_unary


def with_behaviour(handler: Handler, behaviour: Any) -> Handler:
    """The same call, served by `behaviour`."""
    coders = handler.request_deserializer, handler.response_serializer
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(behaviour, *coders)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(behaviour, *coders)
    return grpc.unary_unary_rpc_method_handler(behaviour, *coders)
