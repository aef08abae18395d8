"""Messages and actions on them: pages that need no script, and run none from a message."""

import html
import re
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_console.bodies import HEX_BYTES_MAX, TEXT_CHARS_MAX, shown, snippet
from duetime_console.pages import messages
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_core.testing.clock import START_MS

from tests.console.console import Browser, running
from tests.gateway.people import People, Showing

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@dataclass
class Desk:
    """A cluster, its gateway, and a browser on its console."""

    cluster: Cluster
    stub: Any
    browser: Browser

    async def send(self, message_id: str, **fields: Any) -> None:
        message = message_pb2.Message(topic="orders", id=message_id, **fields)
        (result,) = (await self.stub.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)).results
        assert not result.HasField("fault"), result.fault

    async def text(self, path: str, status: int = 200) -> str:
        answer = await self.browser.get(path, follow_redirects=True)
        assert answer.status_code == status, answer.text[-1500:][:400]
        return answer.text

    async def received(self) -> list[Any]:
        wanted = consumer_pb2.ReceiveRequest(group="billing", topic="orders")
        return list((await self.stub.Receive(wanted, timeout=60)).messages)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with Cluster(within=True) as cluster, running(cluster.address, cluster.clock) as browser:
        channel = make_channel(cluster.address)
        try:
            yield Desk(cluster, gateway_pb2_grpc.GatewayStub(channel), browser)  # type: ignore[no-untyped-call]
        finally:
            await channel.close()


async def test_empty_lists_give_advice(desk: Desk) -> None:
    assert "No message is pending" in await desk.text("/messages")
    assert "There is no topic <q>orders</q>" in await desk.text("/messages?topic=orders")
    await desk.send("a")
    assert "No pending message matches" in await desk.text("/messages?topic=orders")
    assert "No message of <q>orders</q>" in await desk.text("/messages?topic=orders&key=1&where=any")


async def test_group_counts_lapsed_messages(desk: Desk) -> None:
    await desk.send("kept")
    await desk.send("lapsed", expires_ms=1_000)
    await desk.cluster.advance("1s")
    assert [one.message.id for one in await desk.received()] == ["kept"]
    tile = (await desk.text("/groups/billing")).partition("<dt>Lapsed")[2]
    assert tile.startswith("</dt><dd>1</dd>")


async def test_pending_messages_are_found(desk: Desk) -> None:
    await desk.send("early", keys=["42"], delay_ms=1_000, body=b"cancel the order")
    await desk.send("late", delay_ms=86_400_000, body="Größe 6".encode())
    both = await desk.text("/messages")
    assert both.index(">early<") < both.index(">late<")
    for query, found in (
        ("topic=orders", {"early", "late"}),
        ("topic=orders&key=42", {"early"}),
        ("from=2023-11-15T00:00", {"late"}),
        ("before=2023-11-15T00:00:00", {"early"}),
        ("text=GRÖSSE", set()),
        ("text=größe", {"late"}),
        ("topic=bills", set()),
    ):
        text = await desk.text(f"/messages?{query}")
        assert {each for each in ("early", "late") if f">{each}<" in text} == found, query
    assert "1 of 2 messages searched" in await desk.text("/messages?text=order")


async def test_text_is_searched_beyond_the_first_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_console.pages.messages.SHOWN_MAX", 2)
    for number in range(7):
        await desk.send(f"m{number}", delay_ms=1_000 + number, body=b"needle" if number in (4, 6) else b"hay")
    text = await desk.text("/messages?text=needle")
    assert re.findall(r">(m\d)<", text) == ["m4", "m6"]
    assert "2 of 7 messages searched" in text
    monkeypatch.setattr("duetime_console.pages.messages.SEARCHED_MAX", 2)
    text = await desk.text("/messages?text=needle")
    assert "0 of 4 messages searched" in text
    (link,) = re.findall(r'rel="next" href="([^"]+)">Continue the search', text)
    assert re.findall(r">(m\d)<", await desk.text(html.unescape(link))) == ["m4", "m6"]


async def test_list_continues_page_by_page(desk: Desk) -> None:
    messages = [message_pb2.Message(topic="orders", id=f"m{n:03}", delay_ms=1_000 + n) for n in range(130)]
    await desk.stub.Send(gateway_pb2.SendRequest(messages=messages), timeout=60)
    first = await desk.text("/messages?topic=orders")
    (link,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = await desk.text(html.unescape(link))
    ids = re.findall(r">(m\d{3})<", first + second)
    assert ids == [f"m{n:03}" for n in range(130)]
    assert 'rel="next"' not in second


async def test_search_errors_are_shown_at_their_field(desk: Desk) -> None:
    assert 'id="from-note"' in await desk.text("/messages?from=yesterday", 422)
    text = await desk.text("/messages?where=any&topic=orders", 422)
    assert 'id="key-note"' in text
    for query in ("topic=orders&tag=paid", "where=any&topic=orders&key=42&tag=paid"):
        assert 'id="tag-note"' in await desk.text(f"/messages?{query}", 422)
    assert "restart the list" in await desk.text("/messages?page=*", 422)


async def test_message_is_found_by_id_and_in_any_state_by_key_or_tag(desk: Desk) -> None:
    await desk.send("a/b c?"[:3], keys=["42"], tags="paid")
    await desk.send("other", tags="open")
    answer = await desk.browser.get("/messages?id=a/b&topic=orders")
    assert (answer.status_code, answer.headers["location"]) == (303, "/messages/a%2Fb?topic=orders")
    assert "<code>a/b</code>" in await desk.text("/messages/a%2Fb?topic=orders")
    for word in ("key=42", "tag=paid"):
        text = await desk.text(f"/messages?topic=orders&{word}&where=any")
        assert "<td>stored</td>" in text
        assert ">other<" not in text
    assert "the tag <q>none</q>" in await desk.text("/messages?topic=orders&tag=none&where=any")
    assert "Not found" in await desk.text("/messages/nowhere", 404)


async def test_a_search_by_word_tells_which_bodies_were_searched(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await desk.send(f"m{number}", tags="paid", keys=["42"], body=b"body %d" % number)
    for word, label in (("tag=paid", "tag <q>paid</q>"), ("key=42", "key <q>42</q>")):
        text = await desk.text(f"/messages?topic=orders&{word}&where=any&text=none")
        assert "0 of 3 messages searched" in text
        assert f"No message of <q>orders</q> with the {label} has <q>none</q> in its body.</p>" in text
        assert "have left the log" not in text
    monkeypatch.setattr(messages, "FIND_KEY_MAX", 2)
    text = await desk.text("/messages?topic=orders&tag=paid&where=any&text=none")
    assert "0 of 2 messages searched contain <q>none</q>. Older ones were not searched." in text
    assert "in its body, as far as they were searched." in text
    text = await desk.text("/messages?topic=orders&tag=paid&where=any")
    assert "The newest 2 messages; older ones are not shown." in text


async def test_life_of_a_message_is_shown_to_its_end(desk: Desk) -> None:
    await desk.send("a", delay_ms=1_000)
    await desk.cluster.advance("1s")
    (leased,) = await desk.received()
    error = consumer_pb2.HandlerError(type="ValueError", message=SCRIPT, trace="Traceback")
    nack = consumer_pb2.Nack(receipt=leased.receipt, reject=True, error=error)
    await desk.stub.Nack(consumer_pb2.NackRequest(group="billing", nacks=[nack]), timeout=60)
    text = await desk.text("/messages/a?topic=orders")
    kinds = re.findall(r"<strong>([a-z ]+)</strong>", text)
    assert kinds[:3] == ["accepted", "deferred", "delivered"]
    assert kinds[-1] == "dead"
    assert "ValueError: &lt;script&gt;" in text
    assert "<script>alert" not in text
    assert "/dead-letters/letters/a?group=billing" in text
    assert '<span class="badge bad">dead in billing</span>' in text


async def test_message_shows_its_outcome_in_a_group(desk: Desk) -> None:
    await desk.send("a")
    (leased,) = await desk.received()
    assert '<span class="badge">stored</span>' in await desk.text("/messages/a?topic=orders")
    await desk.stub.Ack(consumer_pb2.AckRequest(group="billing", receipts=[leased.receipt]), timeout=60)
    assert '<span class="badge good">done by billing</span>' in await desk.text("/messages/a?topic=orders")


async def test_pending_message_is_cancelled(desk: Desk) -> None:
    await desk.send("a", delay_ms=1_000)
    page = "/messages/a?topic=orders"
    for told in ("cancelled", "cancelled"):
        answer = await desk.browser.post(page, {"act": "cancel"}, page=page)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{page}&told={told}")
    text = await desk.text(f"{page}&told=cancelled")
    assert "never delivered" in text
    assert "Send now" not in text
    await desk.cluster.advance("1s")
    assert await desk.received() == []


async def test_pending_message_is_sent_now(desk: Desk) -> None:
    await desk.send("a", delay_ms=3_600_000)
    page = "/messages/a?topic=orders"
    assert (await desk.browser.post(page, {"act": "now"}, page=page)).headers["location"].endswith("told=now")
    await desk.cluster.advance("1ms")
    assert [each.message.id for each in await desk.received()] == ["a"]
    answer = await desk.browser.post(page, {"act": "cancel"}, page=page)
    assert "Nothing was changed" in await desk.text(answer.headers["location"])


@pytest.mark.parametrize(
    ("fields", "due_ms", "body"),
    [
        ({"delay": "2h"}, 7_200_000, b"old"),
        ({"at": "2023-11-15T00:00:00"}, 1_700_006_400_000 - START_MS, b"old"),
        ({"delay": "90s", "body": "new"}, 90_000, b"new"),
    ],
)
async def test_pending_message_is_rescheduled(desk: Desk, fields: dict[str, str], due_ms: int, body: bytes) -> None:
    await desk.send("a", delay_ms=3_600_000, body=b"old")
    page = "/messages/a?topic=orders"
    answer = await desk.browser.post(page, {"act": "reschedule", **fields}, page=page)
    assert answer.headers["location"].endswith("told=rescheduled"), answer.text
    found = await desk.stub.GetMessage(gateway_pb2.GetMessageRequest(id="a"), timeout=60)
    assert (found.message.due_at_ms - START_MS, found.message.body) == (due_ms, body)


WRONG_TIMES = [
    ({}, "delay"),
    ({"delay": "1s", "at": "2030-01-01T00:00"}, "delay"),
    ({"delay": "soon"}, "delay"),
    ({"at": "soon"}, "at"),
]


async def test_wrong_due_time_is_reported_at_its_field(desk: Desk) -> None:
    await desk.send("a", delay_ms=3_600_000)
    page = "/messages/a?topic=orders"
    for fields, field in WRONG_TIMES:
        answer = await desk.browser.post(page, {"act": "reschedule", **fields}, page=page)
        assert answer.status_code == 422
        assert f'id="{field}-note" role="alert"' in answer.text
    answer = await desk.browser.post(page, {"act": "reschedule", "delay": "8000d"}, page=page)
    assert answer.status_code == 400
    assert "Nothing was changed." in answer.text


async def test_body_is_shown_and_never_run(desk: Desk) -> None:
    await desk.send("a", body=SCRIPT.encode(), properties={"note": SCRIPT}, keys=["<b>"], tags="<i>")
    for path in ("/messages/a", "/messages/a?show=hex", "/messages?topic=orders&key=%3Cb%3E&where=any"):
        text = await desk.text(path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<b>" not in text
    assert "&lt;script&gt;alert(1)" in await desk.text("/messages/a")
    assert "3c 73 63 72 69 70 74" in await desk.text("/messages/a?show=hex")


async def test_body_is_downloaded_as_a_file_that_no_browser_shows(desk: Desk) -> None:
    await desk.send('a"/;b', body=SCRIPT.encode())
    answer = await desk.browser.get("/messages/a%22%2F%3Bb?download=1")
    assert answer.content == SCRIPT.encode()
    assert answer.headers["content-disposition"] == 'attachment; filename="a-b.body"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


async def counted(desk: Desk, query: str) -> tuple[str, str]:
    """Text of a dry run, and its proof."""
    text = await desk.text(f"/cancel?{query}")
    found = re.search(r'id="found">(.*?)</p>', text)
    proof = re.search(r'name="proof" value="([^"]+)"', text)
    assert found
    return re.sub(r"<[^>]+>", "", found[1]), proof[1] if proof else ""


async def test_many_are_cancelled_after_a_dry_run(desk: Desk) -> None:
    for number in range(3):
        await desk.send(f"m{number}", delay_ms=1_000, keys=["odd"] if number % 2 else [])
    text = await desk.text("/messages?topic=orders&key=odd")
    (link,) = re.findall(r'href="(/cancel\?[^"]+)"', text)
    assert html.unescape(link) == "/cancel?topic=orders&key=odd"
    assert "/cancel?" not in await desk.text("/messages")
    said, proof = await counted(desk, "topic=orders&key=odd")
    assert said.startswith("1 pending message would be cancelled")
    fields = {"topic": "orders", "key": "odd", "from": "", "before": ""}
    for forged in ({"proof": ""}, {"proof": proof, "key": ""}):
        answer = await desk.browser.post("/cancel", fields | forged, page="/cancel?topic=orders")
        assert answer.status_code == 409
        assert "Nothing was changed" in answer.text
    answer = await desk.browser.post("/cancel", fields | {"proof": proof}, page="/cancel?topic=orders")
    assert "1 message is cancelled" in answer.text
    assert (await counted(desk, "topic=orders"))[0].startswith("2 pending messages")
    assert "cancelling all pending messages is not supported" in await desk.text("/cancel?key=odd", 422)


async def test_forms_without_their_proof_are_refused(desk: Desk) -> None:
    await desk.send("a", delay_ms=1_000)
    for path, fields in (
        ("/messages/a", {"act": "cancel"}),
        ("/cancel", {"topic": "orders"}),
        ("/send", {"topic": "orders"}),
        ("/transactions/x", {"act": "commit"}),
    ):
        answer = await desk.browser.client.post(path, data=fields)
        assert answer.status_code == 403, path
    assert "Send now" in await desk.text("/messages/a")


async def test_read_only_console_offers_and_does_nothing(desk: Desk) -> None:
    await desk.send("a", delay_ms=1_000)
    async with running(desk.cluster.address, read_only=True) as browser:
        page = "/messages/a?topic=orders"
        text = (await browser.get(page)).text
        assert ">Cancel<" not in text
        assert "Send now" not in text
        assert "This console is read-only" in (await browser.get("/send")).text
        for path, fields in ((page, {"act": "cancel"}), ("/send", {"topic": "orders"})):
            answer = await browser.post(path, fields, page="/messages")
            assert answer.status_code == 403, answer.text
            assert "the console is read-only" in answer.text


async def test_missing_rights_are_refused_and_named() -> None:
    async with (
        Cluster(gateway_settings={"auth": "required"}) as cluster,
        People(cluster.database_url) as people,
        running(cluster.address) as browser,
        make_channel(cluster.address) as channel,
    ):
        admin, reader = await people.add("root", "admin"), await people.add("reader", "receive topic orders")
        stub: Any = gateway_pb2_grpc.GatewayStub(Showing(channel, admin))  # type: ignore[no-untyped-call]
        message = message_pb2.Message(topic="orders", id="a", delay_ms=1_000)
        await stub.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)
        answer = await browser.get("/messages")
        assert answer.headers["location"] == "/sign-in?next=/messages"
        await browser.post("/sign-in", {"token": str(reader), "next": "/"})
        shown_page = await browser.get("/messages")
        assert shown_page.status_code in (200, 403)
        for path, fields in (("/send", {"topic": "orders"}), ("/messages/a?topic=orders", {"act": "cancel"})):
            answer = await browser.post(path, fields, page="/messages")
            assert answer.status_code == 403, (path, answer.text)
        found = await stub.GetMessage(gateway_pb2.GetMessageRequest(id="a"), timeout=60)
        assert found.state == gateway_pb2.MESSAGE_STATE_PENDING


# --- Send -----------------------------------------------------------------------------------------------------------


async def sent(desk: Desk, **fields: str) -> httpx2.Response:
    return await desk.browser.post("/send", {"topic": "orders", **fields}, page="/send")


async def test_message_is_sent_by_hand_with_all_that_there_is(desk: Desk) -> None:
    answer = await sent(
        desk, body='{"a": 1}', form="json", due="delay", delay="90s", tags="paid", keys="42, 43", id="mine",
        properties="size=6\nnote=a=b", sharding_key="x", flag="7", backoff="exponential", initial="1s", max="1h",
        max_attempts="5",
    )  # fmt: skip
    assert answer.status_code == 303, answer.text
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    assert query["sent"] == ["mine"]
    text = await desk.text(answer.headers["location"])
    assert "The message is stored" in text
    found = (await desk.stub.GetMessage(gateway_pb2.GetMessageRequest(id="mine"), timeout=60)).message
    assert (found.body, found.tags, list(found.keys), found.flag) == (b'{"a":1}', "paid", ["42", "43"], 7)
    assert dict(found.properties) == {"size": "6", "note": "a=b", "content_type": "application/json"}
    assert found.due_at_ms == START_MS + 90_000
    again = await sent(desk, id="mine", due="delay", delay="90s")
    assert "stored before" in await desk.text(again.headers["location"])


async def test_priority_and_lite_topic_are_sent_by_hand(desk: Desk) -> None:
    for topic, kind in (("alerts", gateway_pb2.TOPIC_TYPE_PRIORITY), ("rooms", gateway_pb2.TOPIC_TYPE_LITE)):
        made = gateway_pb2.CreateTopicRequest(name=topic, queue_count=4, message_type=kind)
        await desk.stub.CreateTopic(made, timeout=60)
    assert (await sent(desk, topic="alerts", id="urgent", priority="3")).status_code == 303
    assert "<dt>Priority</dt><dd>3</dd>" in await desk.text("/messages/urgent?topic=alerts")
    assert (await sent(desk, topic="rooms", id="hello", lite_topic="room-42")).status_code == 303
    assert "<td><code>room-42</code></td>" in await desk.text("/topics/rooms")
    assert "no lite topic after" in await desk.text("/topics/rooms?after=room-42")
    assert "Lite topics" not in await desk.text("/topics/alerts")
    for wrong in ({"priority": "-1"}, {"priority": "high"}, {"lite_topic": "a"}):
        (name,) = wrong
        assert f'id="{name}-note"' in (await sent(desk, topic="alerts", **wrong)).text


async def test_message_with_an_expiry_is_sent_by_hand(desk: Desk) -> None:
    assert (await sent(desk, id="code", expires="5m")).status_code == 303
    assert "<dt>Expires</dt>" in await desk.text("/messages/code")
    for wrong in ("soon", "-5m", "9999999d"):
        assert 'id="expires-note"' in (await sent(desk, expires=wrong)).text


TIMES: list[tuple[dict[str, str], int | None]] = [
    ({"due": "now", "delay": "5s"}, 0),
    ({"due": "level", "level": "2"}, START_MS + 5_000),
    ({"due": "at", "at": "2023-11-15T00:00"}, 1_700_006_400_000),
    ({"due": "at", "at": "2020-01-01T00:00"}, None),
]


async def test_message_is_sent_for_its_time(desk: Desk) -> None:
    for number, (fields, due_ms) in enumerate(TIMES):
        answer = await sent(desk, id=f"m{number}", body="AA\r\nBB", **fields)
        assert answer.status_code == 303, answer.text
        if due_ms is None:
            assert "Its time was in the past" in await desk.text(answer.headers["location"])
            continue
        found = (await desk.stub.GetMessage(gateway_pb2.GetMessageRequest(id=f"m{number}"), timeout=60)).message
        assert (found.due_at_ms, found.body) == (due_ms, b"AA\nBB")


WRONG_FIELDS = [
    ({"topic": "a b"}, "topic"),
    ({"topic": ""}, "topic"),
    ({"form": "json", "body": "{"}, "body"),
    ({"form": "base64", "body": "*"}, "body"),
    ({"due": "delay", "delay": "soon"}, "delay"),
    ({"due": "delay"}, "delay"),
    ({"due": "level", "level": "x"}, "level"),
    ({"due": "at", "at": "x"}, "at"),
    ({"due": "delay", "delay": "8000d"}, "delay"),
    ({"properties": "size"}, "properties"),
    ({"properties": "TAGS=x"}, "properties"),
    ({"keys": "a b"}, "keys"),
    ({"queue": "x"}, "queue"),
    ({"queue": "9999"}, "queue"),
    ({"backoff": "exponential", "initial": "1s", "max": "soon"}, "max"),
    ({"backoff": "intervals"}, "intervals"),
    ({"backoff": "levels", "max_attempts": "5000"}, "max_attempts"),
]


async def test_wrong_field_is_reported_and_no_input_is_lost(desk: Desk) -> None:
    for fields, field in WRONG_FIELDS:
        answer = await sent(desk, **({"tags": SCRIPT} | fields))
        assert answer.status_code in (400, 422), answer.headers
        assert f'id="{field}-note" role="alert"' in answer.text, fields
        assert "&lt;script&gt;" in answer.text
        assert "<script>alert" not in answer.text


async def test_form_is_filled_as_the_address_says(desk: Desk) -> None:
    text = await desk.text("/send?topic=orders&due=delay&delay=5m&body=%3Cb%3E")
    assert 'value="orders"' in text
    assert "&lt;b&gt;</textarea>" in text
    assert re.search(r'id="due-delay"[^>]* checked', text)


# --- Bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "wanted", "kind", "text"),
    [
        (b"plain", "", "text", "plain"),
        (b"plain", "json", "text", "plain"),
        (b'{"a":[1,{}],"b":1.10}', "", "json", '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": 1.10\n}'),
        (b'{"a":1}', "text", "text", '{"a":1}'),
        (b"[" * 5_000 + b"]" * 5_000, "json", "text", "[" * 5_000 + "]" * 5_000),
        (b"\xff\x00A", "text", "hex", "00000000  ff 00 41                                         ..A"),
        ("a\u202eb\x00\tc".encode(), "", "text", "a\\u202eb\\u0000\tc"),
        (b"", "", "text", ""),
    ],
)
def test_body_is_shown_in_the_kind_that_fits(body: bytes, wanted: str, kind: str, text: str) -> None:
    found = shown(body, wanted)
    assert (found.kind, found.text, found.is_cut) == (kind, text, False)


def test_large_bodies_are_cut() -> None:
    found = shown(b"x" * (TEXT_CHARS_MAX + 1))
    assert (len(found.text), found.is_cut) == (TEXT_CHARS_MAX, True)
    found = shown(b"\xff" * (HEX_BYTES_MAX + 1))
    assert found.is_cut
    assert found.text.count("\n") == HEX_BYTES_MAX // 16 - 1


def test_deep_lists_take_little_memory() -> None:
    body = b"[" * 900 + b"1," * 100_000 + b"1" + b"]" * 900
    tracemalloc.start()
    found = shown(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.kind, found.is_cut, len(found.text)) == ("json", True, TEXT_CHARS_MAX)
    # A copy of every line would take 180 MB.
    assert peak < 40_000_000


def test_snippet_surrounds_the_searched_text() -> None:
    assert snippet(b"one\ntwo") == "one two"
    assert snippet(b"x" * 500 + b" NEEDLE " + b"y" * 500, "needle").startswith("… x")
    assert "NEEDLE" in snippet(b"x" * 500 + b" NEEDLE " + b"y" * 500, "needle")
