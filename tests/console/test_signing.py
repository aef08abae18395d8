"""Signing in to a cluster with users: permitted actions are offered, the rest is refused, and sessions end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from duetime.v1 import gateway_pb2
from duetime_console.gateway import READING, Gateway, GatewayError
from duetime_console.session import COOKIE
from duetime_console.settings import Settings
from duetime_core.clock import SystemClock
from duetime_core.testing import Cluster, FakeClock
from duetime_gateway.access.grants import EVERYTHING, Access
from duetime_gateway.face.permissions import methods_of

from tests.console.console import SECRET, Browser, running
from tests.gateway.people import People, grant


@asynccontextmanager
async def with_users(directory: Path, **settings: Any) -> AsyncIterator[tuple[Browser, dict[str, str], People]]:
    """A console of a cluster with an admin, `ops`, and `shop`, a sender to `orders`; their tokens by name."""
    async with (
        Cluster(directory, within=True, clock=SystemClock(), gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
        running(cluster.address, **settings) as browser,
    ):
        tokens = {"ops": await people.add("ops", "admin"), "shop": await people.add("shop", "send topic orders")}
        yield browser, {name: str(token) for name, token in tokens.items()}, people


async def sign_in(browser: Browser, token: str, after: str = "/") -> Any:
    return await browser.post("/sign-in", {"token": token, "next": after})


async def test_strangers_sign_in_first_and_come_back_to_where_they_went(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, _):
        answer = await browser.get("/?span=60000")
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/%3Fspan%3D60000")
        part = await browser.get("/live", headers={"hx-request": "true"})
        assert part.headers["hx-redirect"].startswith("/sign-in")
        answer = await sign_in(browser, tokens["ops"], "/?span=60000")
        assert (answer.status_code, answer.headers["location"]) == (303, "/?span=60000")
        page = (await browser.get("/?span=60000")).text
        assert "Sign out ops" in page
        assert "<dt>pending</dt>" in page


async def test_tokens_that_do_not_count_are_refused(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, _, _):
        for token in ("", "x", "dt_aaaaaaaaaaaa_" + "a" * 52, "y" * 5_000):
            answer = await sign_in(browser, token)
            assert answer.status_code in (400, 401), token
            assert 'role="alert"' in answer.text, token
            assert token not in answer.text or len(token) < 2
            assert (await browser.get("/")).status_code == 303, token


async def test_sign_in_leads_to_no_other_site(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, _):
        for after in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
            browser.client.cookies.clear()
            assert (await sign_in(browser, tokens["ops"], after)).headers["location"] == "/", after


async def test_cookie_has_no_readable_token_and_counts_no_more_after_the_sign_out(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, _):
        await sign_in(browser, tokens["ops"])
        cookie = browser.client.cookies[COOKIE]
        assert tokens["ops"] not in cookie
        assert (await browser.get("/")).status_code == 200
        assert (await browser.post("/sign-out", page="/")).headers["location"] == "/sign-in"
        browser.client.cookies.clear()
        stolen = {"cookie": f"{COOKIE}={cookie}"}
        assert (await browser.get("/", headers=stolen)).status_code == 303


async def test_sessions_of_other_secrets_and_torn_ones_do_not_count(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, _):
        await sign_in(browser, tokens["ops"])
        cookie = browser.client.cookies[COOKIE]
        forged = Fernet(Fernet.generate_key()).encrypt(b'{"id":"","csrf":"","token":"","began_s":0}').decode()
        for wrong in (forged, cookie[:-5], "x", ""):
            browser.client.cookies.clear()
            assert (await browser.get("/", headers={"cookie": f"{COOKIE}={wrong}"})).status_code == 303


async def test_an_idle_session_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    async with with_users(tmp_path, clock=clock, session_idle_ms=60_000) as (browser, tokens, _):
        await sign_in(browser, tokens["ops"])
        assert (await browser.get("/sign-in")).status_code == 303
        clock.move(61_000)
        assert (await browser.get("/sign-in")).status_code == 200


async def test_restricted_user_sees_own_topics_and_no_figures(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, _):
        await sign_in(browser, tokens["shop"])
        page = (await browser.get("/")).text
        assert "need the right to manage all topics" in page
        assert "<dt>pending</dt>" not in page
        assert (await browser.get("/live")).status_code == 403
        json = {"accept": "application/json"}
        refused = await browser.get("/picture?from=1&before=60001", headers=json)
        assert refused.status_code == 403
        assert "no right" in refused.json()["detail"]


async def test_revoked_user_must_sign_in_again(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, people):
        await sign_in(browser, tokens["shop"])
        await people.revoke("shop")
        while (await browser.get("/")).status_code == 200:
            pass
        assert (await browser.get("/")).headers["location"].startswith("/sign-in")


async def test_where_it_only_reads_every_call_that_changes_is_refused() -> None:
    gateway = Gateway(Settings.read(server="127.0.0.1:1", read_only=True, secret=SECRET))
    changing = [method for method in methods_of(EVERYTHING) if method not in READING]
    assert {"Send", "Cancel", "Reschedule", "RedriveDeadLetters", "CreateTopic", "Receive"} <= set(changing)
    assert [method for method in changing if method.startswith(("List", "Get", "Describe"))] == []
    for method in changing:
        with pytest.raises(GatewayError) as refused:
            await gateway.call(method, gateway_pb2.ListTopicsRequest())
        assert refused.value.reason == "READ_ONLY"
    await gateway.close()


async def test_permitted_calls_follow_from_the_rights() -> None:
    everything = set(methods_of(EVERYTHING))
    assert everything >= READING
    shop = set(methods_of(Access("shop", [grant("send topic orders")])))
    assert {"Send", "Cancel", "ListTopics", "WhoAmI", "Backlog"} <= shop
    assert shop & {"ListLanes", "ListPending", "CreateTopic", "ListAuditEvents"} == set()


async def test_bodies_of_strangers_are_not_read(tmp_path: Path) -> None:
    async with with_users(tmp_path) as (browser, tokens, _):
        json = {"content-type": "application/json"}
        answer = await browser.client.post("/api/v1/messages", content=b"[" * 1_000_000, headers=json)
        assert (answer.status_code, answer.json()["reason"]) == (401, "TOKEN_MISSING")
        answer = await browser.client.post(
            "/api/v1/messages", content=b"[" * 1_000_000, headers=json | {"authorization": "Bearer dt_x"}
        )
        assert answer.status_code == 401
        answer = await browser.client.post(
            "/api/v1/messages", content=b"[", headers=json | {"authorization": f"Bearer {tokens['shop']}"}
        )
        assert answer.status_code == 400
        form = {"content-type": "application/x-www-form-urlencoded"}
        # Without a session, and with that of a stranger.
        assert (await browser.client.post("/sign-in", content=b"x" * 1_000_000, headers=form)).status_code == 403
        await browser.get("/sign-in")
        assert (await browser.client.post("/sign-in", content=b"x" * 1_000_000, headers=form)).status_code == 413
        assert (await browser.client.post("/send", content=b"x" * 1_000_000, headers=form)).status_code == 303


@pytest.mark.parametrize("change", ["token", "right"])
async def test_live_page_ends_when_its_user_may_no_longer(tmp_path: Path, change: str) -> None:
    async with with_users(tmp_path, refresh_ms=100) as (browser, tokens, people):
        await sign_in(browser, tokens["ops"])
        async with browser.client.stream("GET", "/live") as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            if change == "token":
                await people.revoke("ops")
            else:
                await people.take("ops", "admin")
            async with asyncio.timeout(60):
                async for _ in lines:
                    pass
        assert browser.console._app.state.watch.events.reader_count == 0
        assert (await browser.get("/live")).status_code in (303, 403)
