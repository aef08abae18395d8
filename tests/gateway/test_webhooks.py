"""Webhooks at the gateway: rules of their fields, names, limits, and the secret that only one answer has."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2
from duetime.v1 import webhooks_pb2 as pb
from duetime_core.access.sealing import Seal
from duetime_core.metadata import Database
from duetime_core.metadata import webhooks as table

from tests.gateway.conftest import Gateway, error_of, real_store

KEY = base64.b64encode(b"k" * 32).decode()
URL = "https://shop.example/hook"


async def create(gateway: Gateway, **values: Any) -> Any:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders"), timeout=60)
    fields = {"name": "paid", "topic": "orders", "group": "hook", "url": URL, **values}
    return await gateway.stub.CreateWebhook(pb.CreateWebhookRequest(webhook=pb.Webhook(**fields)), timeout=60)


async def test_webhook_is_created_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, secrets_key=KEY) as gateway:
        stub, paid = gateway.stub, pb.WebhookRef(name="paid")
        made = await create(gateway)
        assert base64.b64decode(made.secret.removeprefix("whsec_")).__len__() == 32
        assert (made.webhook.concurrency, made.webhook.timeout_ms) == (16, 15_000)
        found = (await error_of(create(gateway))).details() or ""
        assert found == "webhook paid exists; update or delete it"
        request = pb.UpdateWebhookRequest(name="paid", url="https://new.example/", timeout_ms=1_000)
        changed = await stub.UpdateWebhook(request, timeout=60)
        assert (changed.url, changed.concurrency, changed.timeout_ms) == ("https://new.example/", 16, 1_000)
        assert (await stub.PauseWebhook(paid, timeout=60)).paused
        assert not (await stub.ResumeWebhook(paid, timeout=60)).paused
        listed = (await stub.ListWebhooks(pb.ListWebhooksRequest(), timeout=60)).webhooks
        assert [one.name for one in listed] == ["paid"]
        rotated = await stub.RotateWebhookSecret(
            pb.RotateWebhookSecretRequest(name="paid", old_valid_ms=60_000), timeout=60
        )
        assert rotated.secret != made.secret
        assert rotated.webhook.old_secret_ends_at_ms > 0
        await stub.DeleteWebhook(paid, timeout=60)
        for call in (stub.PauseWebhook(paid), stub.DeleteWebhook(paid), stub.TestWebhook(paid)):
            assert (await error_of(call)).code() is grpc.StatusCode.NOT_FOUND


async def test_secret_is_stored_encrypted_for_its_webhook_alone(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, secrets_key=KEY) as gateway:
        secret = (await create(gateway)).secret
        files = b"".join(await asyncio.to_thread(lambda: [path.read_bytes() for path in tmp_path.glob("meta.db*")]))
        assert URL.encode() in files
        assert secret.removeprefix("whsec_").encode() not in files
        database = Database(gateway.settings.database_url)
        await database.start()
        ((stored, _),) = (await database.run(table.read_webhooks)).values()
        await database.stop()
        seal = Seal(KEY)
        assert seal.open(table.seal_name("paid"), stored.sealed) == secret
        with pytest.raises(Exception, match="cannot be decrypted"):
            seal.open(table.seal_name("other"), stored.sealed)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": ""}, "name: '' is not 1 to 64 characters of [a-zA-Z0-9_-]"),
        ({"name": "a b"}, "name: 'a b' is not"),
        ({"topic": ""}, "topic: "),
        ({"topic": "DT_GROUPS"}, "topic: "),
        ({"group": "a b"}, "group: 'a b' is not"),
        ({"url": ""}, "url: is not 1 to 2048 characters of ASCII without blanks"),
        ({"url": "https://a/" + "b" * 2_048}, "url: is not 1 to 2048"),
        ({"url": "https://a/ü"}, "url: is not 1 to 2048"),
        ({"url": "https://a/b c"}, "url: is not 1 to 2048"),
        ({"url": "https://a\r\nx: 1"}, "url: is not 1 to 2048"),
        ({"url": "ftp://a/"}, "url: begins with 'ftp', not https://"),
        ({"url": "https:///path"}, "url: has no host"),
        ({"url": "https://a:99999/"}, "url: is malformed"),
        ({"url": "https://[::1/"}, "url: is malformed"),
        ({"url": "https://a:0/"}, "url: has port 0"),
        ({"url": "https://me:secret@a/"}, "url: has a user or password"),
        ({"url": "https://a/#b"}, "url: has a fragment"),
        ({"concurrency": 257}, "concurrency: 257 is not within 1 and 256"),
        ({"concurrency": -1}, "concurrency: -1 is not within 1 and 256"),
        ({"timeout_ms": 999}, "timeout_ms: 999 is not within 1000 and 60000"),
    ],
)
async def test_wrong_fields_are_rejected_and_no_secret_of_an_url_is_shown(
    tmp_path: Path, values: dict[str, Any], text: str
) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, secrets_key=KEY) as gateway:
        error = await error_of(create(gateway, **values))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in (error.details() or "")
        assert "secret" not in (error.details() or "")


async def test_webhook_needs_a_topic_a_key_and_a_free_place(
    tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = await error_of(create(gateway, topic="other"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    error = await error_of(create(gateway))
    assert (error.code(), "DUETIME_SECRETS_KEY" in (error.details() or "")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        True,
    )
    monkeypatch.setattr(table, "WEBHOOKS_MAX", 0)
    with_key = tmp_path / "with-key"
    with_key.mkdir()
    async with real_store(with_key) as store, Gateway(with_key, {0: store.port}, secrets_key=KEY) as other:
        error = await error_of(create(other))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
