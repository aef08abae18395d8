"""The switch of the SDK's traces: `tracing.enable()`, `tracing.disable()`; docs/operations.md describes them."""

from duetime.client.tracing import TRACEPARENT, disable, enable

__all__ = ["TRACEPARENT", "disable", "enable"]
