"""Webhooks over the HTTP API and in the console, beside a worker and a receiver."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from standardwebhooks.webhooks import Webhook

from tests.console.console import Browser, running
from tests.console.test_http_requests import problem
from tests.webhooks.conftest import WebhookRig, rig, until
from tests.webhooks.receiver import Answer

__all__ = ["rig"]

WEBHOOKS = "/api/v1/webhooks"


@asynccontextmanager
async def console(rig: WebhookRig, **settings: Any) -> AsyncIterator[Browser]:
    async with running(rig.cluster.address, rig.cluster.clock, **settings) as browser:
        yield browser


def secrets_in(text: str) -> list[str]:
    return re.findall(r"whsec_[\w+/=]+", text)


async def acted(browser: Browser, what: str, **fields: str) -> httpx2.Response:
    return await browser.post("/webhooks/paid", {"act": what, **fields}, page="/webhooks/paid")


async def test_webhook_over_http_is_created_tested_changed_and_deleted(rig: WebhookRig) -> None:
    await rig.admin.create_topic("orders")
    fields = {"name": "paid", "topic": "orders", "group": "hook", "url": rig.receiver.url(), "timeout": "60s"}
    async with console(rig) as browser:
        client = browser.client
        assert (await client.get(WEBHOOKS)).json() == {"webhooks": []}
        assert problem(await client.post(WEBHOOKS, json=fields | {"topic": "none"}), 404)["reason"] == "TOPIC_NOT_FOUND"
        refused = problem(await client.post(WEBHOOKS, json=fields | {"url": "ftp://x", "concurrency": 257}), 400)
        assert [one["field"] for one in refused["violations"]] == ["concurrency"]
        answer = await client.post(WEBHOOKS, json=fields)
        assert (answer.status_code, answer.headers["location"]) == (201, f"{WEBHOOKS}/paid"), answer.text
        made = answer.json()
        assert (made["concurrency"], made["timeout_ms"], made["test"], made["paused"]) == (16, 60_000, None, False)
        assert problem(await client.post(WEBHOOKS, json=fields), 409)["reason"] == "WEBHOOK_EXISTS"
        await rig.worker()
        asked = await client.post(f"{WEBHOOKS}/paid/test", json={})
        assert (asked.status_code, asked.json()["test"]["number"]) == (202, 1)

        async def shown() -> dict[str, Any]:
            return dict((await client.get(f"{WEBHOOKS}/paid")).json())

        tested = (await until(shown, lambda one: one["test"]["done"]))["test"]
        assert (tested["number"], tested["status"], tested["error"]) == (1, 200, None)
        received = rig.receiver.requests[-1]
        assert Webhook(made["secret"]).verify(received.body, received.headers)["type"] == "duetime.test"
        rotated = (await client.post(f"{WEBHOOKS}/paid/rotate", json={"old_valid": "1d"})).json()
        assert rotated["secret"] != made["secret"]
        assert rotated["old_secret_ends_at"]
        changed = (await client.patch(f"{WEBHOOKS}/paid", json={"concurrency": 4})).json()
        assert (changed["concurrency"], changed["timeout_ms"], changed["url"]) == (4, 60_000, rig.receiver.url())
        assert (await client.post(f"{WEBHOOKS}/paid/pause", json={})).json()["paused"]
        assert not (await client.post(f"{WEBHOOKS}/paid/resume", json={})).json()["paused"]
        assert secrets_in((await client.get(WEBHOOKS)).text + (await client.get(f"{WEBHOOKS}/paid")).text) == []
        assert (await client.delete(f"{WEBHOOKS}/paid")).json() == {"name": "paid"}
        assert problem(await client.get(f"{WEBHOOKS}/paid"), 404)["reason"] == "WEBHOOK_NOT_FOUND"


async def test_webhook_is_created_by_hand_and_its_secret_is_shown_once(rig: WebhookRig) -> None:
    await rig.admin.create_topic("orders")
    typed = {"name": "paid", "topic": "orders", "group": "hook", "url": "shop.example", "concurrency": "300"}
    async with console(rig) as browser:
        assert "There are no webhooks yet" in (await browser.get("/webhooks")).text
        form = "/webhooks/+new"
        wrong = await browser.post(form, typed, page=form)
        assert (wrong.status_code, 'value="shop.example"' in wrong.text) == (422, True)
        assert 'id="concurrency-note" role="alert"' in wrong.text
        wrong = await browser.post(form, typed | {"concurrency": ""}, page=form)
        assert (wrong.status_code, 'id="url-note" role="alert"' in wrong.text) == (400, True)
        made = await browser.post(form, typed | {"concurrency": "", "url": rig.receiver.url()}, page=form)
        assert (made.status_code, len(secrets_in(made.text))) == (201, 1)
        assert "No worker runs." in made.text
        again = await browser.post(form, typed | {"concurrency": "", "url": rig.receiver.url()}, page=form)
        assert (again.status_code, "webhook paid exists" in again.text) == (409, True)
        pages = (await browser.get("/webhooks")).text + (await browser.get("/webhooks/paid")).text
        assert secrets_in(pages) == []
        assert 'href="/webhooks/paid"' in pages
        rotated = await acted(browser, "rotate", old_valid="1d")
        assert secrets_in(rotated.text) != secrets_in(made.text)
        assert "signs too until" in rotated.text
        wrong = await acted(browser, "rotate", old_valid="1 fortnight")
        assert (wrong.status_code, 'id="old_valid-note" role="alert"' in wrong.text) == (422, True)


async def test_console_tests_pauses_changes_and_deletes_a_webhook(rig: WebhookRig) -> None:
    await rig.create()
    rig.receiver.answer = lambda one: Answer(503, body=b"<later>") if one.path == "/hook" else Answer(200)
    async with console(rig) as browser:
        tested = await acted(browser, "test")
        assert tested.headers["location"] == "/webhooks/paid#test"
        assert 'hx-get="/webhooks/paid" hx-trigger="every 1s"' in (await browser.get("/webhooks/paid")).text
        await rig.worker()

        async def part() -> str:
            return (await browser.get("/webhooks/paid", headers={"hx-request": "true"})).text

        result = await until(part, lambda text: "every 1s" not in text)
        assert result.startswith('<section id="test"')
        assert "Failed</strong>" in result
        assert "503 Service Unavailable: &lt;later&gt;" in result
        changed = await acted(browser, "change", url=rig.receiver.url("/new"), concurrency="2", timeout="5s")
        shown = (await browser.get(changed.headers["location"])).text
        assert "Workers apply it within 2 s." in shown
        assert "2 at once, 5 s each" in shown
        wrong = await acted(browser, "change", url="ftp://x")
        assert (wrong.status_code, 'value="ftp://x"' in wrong.text) == (400, True)
        await acted(browser, "pause")
        assert '<span class="badge warn">paused</span>' in (await browser.get("/webhooks")).text
        await acted(browser, "resume")
        await rig.until(lambda one: one.worker_seen_at_ms)
        assert '<span class="badge good">active</span>' in (await browser.get("/webhooks")).text
        assert (await acted(browser, "dance")).status_code == 400
        deleted = await acted(browser, "delete")
        assert "Webhook <code>paid</code> is deleted." in (await browser.get(deleted.headers["location"])).text
        assert (await browser.get("/webhooks/paid")).status_code == 404


async def test_read_only_console_shows_webhooks_and_changes_none(rig: WebhookRig) -> None:
    await rig.create()
    async with console(rig, read_only=True) as browser:
        text = (await browser.get("/webhooks/paid")).text
        assert rig.receiver.url() in text
        assert [what for what in ("pause", "test", "rotate", "delete", "change") if f'value="{what}"' in text] == []
        assert (await acted(browser, "pause")).status_code == 403
        assert "This console is read-only." in (await browser.get("/webhooks/+new")).text
        refused = problem(await browser.client.post(f"{WEBHOOKS}/paid/pause", json={}), 403)
        assert refused["reason"] == "READ_ONLY"
    assert not (await rig.shown()).paused
