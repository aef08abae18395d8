"""Webhooks over HTTP: created, changed, listed, paused, resumed, tested and deleted; their secrets are rotated."""

from typing import Any
from urllib.parse import quote

from duetime.v1 import webhooks_pb2
from duetime_format.limits import (
    WEBHOOK_CONCURRENCY_MAX,
    WEBHOOK_OLD_SECRET_MS_MAX,
    WEBHOOK_TIMEOUT_MS_MAX,
    WEBHOOK_TIMEOUT_MS_MIN,
    WEBHOOK_URL_CHARS_MAX,
)
from pydantic import Field

from duetime_console.api.fields import AnswerModel, ChangeBody, Length, RequestModel, iso
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall

_PATH = "/api/v1/webhooks/{webhook}"
_URL = "the receiver: https://HOST/PATH"
_CONCURRENCY = "maximum requests of one worker at once; without it 16"
_TIMEOUT = "longest time of a request, 1 s to 1 min; without it 15 s"
_OLD_VALID = "time for which the old secret signs too, up to 30 days; 0: it ends at once"
_SIGNING = "`whsec_` and 32 bytes in base64, for the receiver; no other answer has it"


class WebhookFields(RequestModel):
    """A new webhook."""

    name: str = Field(description="1 to 64 characters of [a-zA-Z0-9_-]")
    topic: str
    group: str = Field(description="the group as which it receives; a new one begins with the earliest message")
    url: str = Field(max_length=WEBHOOK_URL_CHARS_MAX, description=_URL)
    concurrency: int | None = Field(None, ge=1, le=WEBHOOK_CONCURRENCY_MAX, description=_CONCURRENCY)
    timeout: Length | None = Field(None, ge=WEBHOOK_TIMEOUT_MS_MIN, le=WEBHOOK_TIMEOUT_MS_MAX, description=_TIMEOUT)


class WebhookChanges(RequestModel):
    """New values of a webhook; those left out are unchanged."""

    url: str | None = Field(None, max_length=WEBHOOK_URL_CHARS_MAX, description=_URL)
    concurrency: int | None = Field(None, ge=1, le=WEBHOOK_CONCURRENCY_MAX)
    timeout: Length | None = Field(None, ge=WEBHOOK_TIMEOUT_MS_MIN, le=WEBHOOK_TIMEOUT_MS_MAX)


class RotationFields(RequestModel):
    old_valid: Length = Field(0, ge=0, le=WEBHOOK_OLD_SECRET_MS_MAX, description=_OLD_VALID)


class WebhookTestAnswer(AnswerModel):
    """The last test."""

    number: int = Field(description="counts the tests of the webhook")
    done: bool = Field(description="a worker has sent it and knows the result")
    status: int | None = Field(description="the response's status; null: there was none")
    error: str | None = Field(description="null: delivered, or not done")
    took_ms: int | None


class WebhookAnswer(AnswerModel):
    """A webhook and the last reports of its workers."""

    name: str
    topic: str
    group: str
    url: str
    concurrency: int
    timeout_ms: int
    paused: bool
    pause_reason: str | None = Field(description="a worker paused it, because the receiver answered 410")
    created_at: str | None
    old_secret_ends_at: str | None = Field(description="the old secret signs too until then")
    worker_seen_at: str | None = Field(description="a running worker renews it every 10 s")
    delivered_at: str | None
    failed_at: str | None
    failure: str | None = Field(description="of the last failed request")
    test: WebhookTestAnswer | None


class SignedWebhookAnswer(WebhookAnswer):
    """A webhook with a secret that was made for it."""

    secret: str = Field(description=_SIGNING)


class WebhooksAnswer(AnswerModel):
    """All webhooks, by name."""

    webhooks: list[WebhookAnswer]


class DeletedWebhook(AnswerModel):
    """A webhook that ended with its secret."""

    name: str


def _fields(found: webhooks_pb2.Webhook) -> dict[str, Any]:
    """The fields of WebhookAnswer."""
    test = found.test
    return {
        "name": found.name,
        "topic": found.topic,
        "group": found.group,
        "url": found.url,
        "concurrency": found.concurrency,
        "timeout_ms": found.timeout_ms,
        "paused": found.paused,
        "pause_reason": found.pause_reason or None,
        "created_at": iso(found.created_at_ms),
        "old_secret_ends_at": iso(found.old_secret_ends_at_ms),
        "worker_seen_at": iso(found.worker_seen_at_ms),
        "delivered_at": iso(found.delivered_at_ms),
        "failed_at": iso(found.failed_at_ms),
        "failure": found.failure or None,
        "test": WebhookTestAnswer(
            number=test.number,
            done=test.done,
            status=test.status or None,
            error=test.error or None,
            took_ms=test.took_ms if test.done else None,
        )
        if found.HasField("test")
        else None,
    }


def _answer(found: webhooks_pb2.Webhook) -> OperationAnswer:
    return OperationAnswer(WebhookAnswer(**_fields(found)))


def _signed(made: webhooks_pb2.WebhookSecret) -> SignedWebhookAnswer:
    return SignedWebhookAnswer(**_fields(made.webhook), secret=made.secret)


def _reference(call: OperationCall) -> webhooks_pb2.WebhookRef:
    return webhooks_pb2.WebhookRef(name=call.webhook)


async def list_webhooks(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = (await call.gateway("ListWebhooks", webhooks_pb2.ListWebhooksRequest())).webhooks
    return OperationAnswer(WebhooksAnswer(webhooks=[WebhookAnswer(**_fields(one)) for one in found]))


async def create(call: OperationCall, _: EmptyQuery, given: WebhookFields) -> OperationAnswer:
    webhook = webhooks_pb2.Webhook(
        name=given.name,
        topic=given.topic,
        group=given.group,
        url=given.url,
        concurrency=given.concurrency or 0,
        timeout_ms=given.timeout or 0,
    )
    made = await call.gateway("CreateWebhook", webhooks_pb2.CreateWebhookRequest(webhook=webhook))
    place = _PATH.format(webhook=quote(given.name, safe=""))
    return OperationAnswer(_signed(made), 201, {"Location": place})


async def get(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    wanted = webhooks_pb2.ListWebhooksRequest(name=call.webhook)
    return _answer((await call.gateway("ListWebhooks", wanted)).webhooks[0])


async def update(call: OperationCall, _: EmptyQuery, given: WebhookChanges) -> OperationAnswer:
    wanted = webhooks_pb2.UpdateWebhookRequest(
        name=call.webhook, url=given.url, concurrency=given.concurrency, timeout_ms=given.timeout
    )
    return _answer(await call.gateway("UpdateWebhook", wanted))


async def delete(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    await call.gateway("DeleteWebhook", _reference(call))
    return OperationAnswer(DeletedWebhook(name=call.webhook))


async def pause(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    return _answer(await call.gateway("PauseWebhook", _reference(call)))


async def resume(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    return _answer(await call.gateway("ResumeWebhook", _reference(call)))


async def test(call: OperationCall, _: EmptyQuery, __: ChangeBody) -> OperationAnswer:
    found = await call.gateway("TestWebhook", _reference(call))
    return OperationAnswer(WebhookAnswer(**_fields(found)), 202)


async def rotate(call: OperationCall, _: EmptyQuery, given: RotationFields) -> OperationAnswer:
    wanted = webhooks_pb2.RotateWebhookSecretRequest(name=call.webhook, old_valid_ms=given.old_valid)
    return OperationAnswer(_signed(await call.gateway("RotateWebhookSecret", wanted)))


OPERATIONS = [
    Operation("GET", "/api/v1/webhooks", "listWebhooks", "List the webhooks", list_webhooks, {200: WebhooksAnswer}),
    Operation(
        "POST",
        "/api/v1/webhooks",
        "createWebhook",
        "Create a webhook and its secret",
        create,
        {201: SignedWebhookAnswer},
        body=WebhookFields,
        description="409: WEBHOOK_EXISTS, perhaps by an earlier call whose answer was lost: `rotate` returns a new "
        "secret; SECRETS_KEY_MISSING. 429 (WEBHOOKS_EXHAUSTED): their number is at its limit.",
    ),
    Operation("GET", _PATH, "getWebhook", "Get a webhook and its last reports", get, {200: WebhookAnswer}),
    Operation(
        "PATCH",
        _PATH,
        "updateWebhook",
        "Change the URL or the limits of a webhook",
        update,
        {200: WebhookAnswer},
        body=WebhookChanges,
        description="Workers apply it within 2 s; messages that wait go to the new URL.",
    ),
    Operation(
        "DELETE",
        _PATH,
        "deleteWebhook",
        "Delete a webhook and its secret",
        delete,
        {200: DeletedWebhook},
        description="Its topic and group are unchanged. 404 (WEBHOOK_NOT_FOUND), also if an earlier call deleted it.",
    ),
    Operation(
        "POST",
        f"{_PATH}/pause",
        "pauseWebhook",
        "Pause a webhook",
        pause,
        {200: WebhookAnswer},
        body=ChangeBody,
        description="Messages wait in the topic. May be repeated.",
    ),
    Operation(
        "POST",
        f"{_PATH}/resume",
        "resumeWebhook",
        "Resume a webhook",
        resume,
        {200: WebhookAnswer},
        body=ChangeBody,
        description="It continues with the messages that wait. May be repeated.",
    ),
    Operation(
        "POST",
        f"{_PATH}/test",
        "testWebhook",
        "Send a signed test message",
        test,
        {202: WebhookAnswer},
        body=ChangeBody,
        description="A worker sends it; `getWebhook` has the result, once `test` is done with this number.",
    ),
    Operation(
        "POST",
        f"{_PATH}/rotate",
        "rotateWebhookSecret",
        "Replace the signing secret",
        rotate,
        {200: SignedWebhookAnswer},
        body=RotationFields,
        description="A repetition makes another one.",
    ),
]
