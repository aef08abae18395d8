"""The Gateway's gRPC surface for webhooks: translate in, call, translate out."""

import json
from typing import Any

import grpc
from duetime.v1 import webhooks_pb2 as pb

from duetime_gateway.administration.webhooks import Found, WebhookRegistry
from duetime_gateway.face.callers import Context

_CHANGED = ("url", "concurrency", "timeout_ms")


class WebhookService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, webhooks: WebhookRegistry) -> None:
        self._webhooks = webhooks

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary, ref = grpc.unary_unary_rpc_method_handler, pb.WebhookRef.FromString
        one, secret = pb.Webhook.SerializeToString, pb.WebhookSecret.SerializeToString
        return {
            "CreateWebhook": unary(self.create, pb.CreateWebhookRequest.FromString, secret),
            "UpdateWebhook": unary(self.update, pb.UpdateWebhookRequest.FromString, one),
            "ListWebhooks": unary(
                self.list, pb.ListWebhooksRequest.FromString, pb.ListWebhooksResponse.SerializeToString
            ),
            "PauseWebhook": unary(self.pause, ref, one),
            "ResumeWebhook": unary(self.resume, ref, one),
            "RotateWebhookSecret": unary(self.rotate, pb.RotateWebhookSecretRequest.FromString, secret),
            "TestWebhook": unary(self.test, ref, one),
            "DeleteWebhook": unary(self.delete, ref, pb.DeleteWebhookResponse.SerializeToString),
        }

    async def create(self, request: pb.CreateWebhookRequest, context: Context) -> pb.WebhookSecret:
        one = request.webhook
        found, secret = await self._webhooks.create(
            one.name, one.topic, one.group, one.url, concurrency=one.concurrency, timeout_ms=one.timeout_ms
        )
        return pb.WebhookSecret(webhook=_message(found), secret=secret)

    async def update(self, request: pb.UpdateWebhookRequest, context: Context) -> pb.Webhook:
        values = {name: getattr(request, name) for name in _CHANGED if request.HasField(name)}
        return _message(await self._webhooks.update(request.name, values))

    async def list(self, request: pb.ListWebhooksRequest, context: Context) -> pb.ListWebhooksResponse:
        return pb.ListWebhooksResponse(webhooks=map(_message, await self._webhooks.list(request.name)))

    async def pause(self, request: pb.WebhookRef, context: Context) -> pb.Webhook:
        return _message(await self._webhooks.pause(request.name, paused=True))

    async def resume(self, request: pb.WebhookRef, context: Context) -> pb.Webhook:
        return _message(await self._webhooks.pause(request.name, paused=False))

    async def rotate(self, request: pb.RotateWebhookSecretRequest, context: Context) -> pb.WebhookSecret:
        found, secret = await self._webhooks.rotate(request.name, request.old_valid_ms)
        return pb.WebhookSecret(webhook=_message(found), secret=secret)

    async def test(self, request: pb.WebhookRef, context: Context) -> pb.Webhook:
        return _message(await self._webhooks.ask_for_test(request.name))

    async def delete(self, request: pb.WebhookRef, context: Context) -> pb.DeleteWebhookResponse:
        await self._webhooks.delete(request.name)
        return pb.DeleteWebhookResponse()


def _message(found: Found) -> pb.Webhook:
    webhook, report = found
    made = pb.Webhook(
        name=webhook.name,
        topic=webhook.topic,
        group=webhook.group,
        url=webhook.url,
        concurrency=webhook.concurrency,
        timeout_ms=webhook.timeout_ms,
        paused=webhook.paused,
        pause_reason=webhook.pause_reason,
        created_at_ms=webhook.created_at_ms,
        old_secret_ends_at_ms=webhook.old_ends_at_ms,
        worker_seen_at_ms=report.worker_seen_at_ms,
        delivered_at_ms=report.delivered_at_ms,
        failed_at_ms=report.failed_at_ms,
        failure=report.failure,
    )
    if report.test_number:
        # The result of an earlier test is not the last one's.
        is_taken = report.test_taken == report.test_number
        result = json.loads(report.test_result) if is_taken and report.test_result else {}
        made.test.CopyFrom(pb.WebhookTest(number=report.test_number, done=bool(result), **result))
    return made
