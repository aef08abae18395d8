"""Dead letters in the console: looked at, taken home, given another try or thrown away, and never without a dry run."""

import asyncio
import html
import json
import re

import pytest
from duetime.v1 import consumer_pb2

from tests.console.conftest import Shown
from tests.console.console import running
from tests.console.test_topics_and_groups import rows
from tests.console.traffic import BILLING, ORDERS, Traffic

pytestmark = pytest.mark.asyncio(loop_scope="module")
OF_BILLING = f"/dead-letters?group={BILLING}"


async def left(traffic: Traffic, group: str, *, newest_first: bool = False) -> list[str]:
    """Ids of its dead letters."""
    wanted = consumer_pb2.ListDeadLettersRequest(
        filter=consumer_pb2.DeadLetterFilter(group=group), max_count=1000, newest_first=newest_first
    )
    return [letter.message.id for letter in (await traffic.call("ListDeadLetters", wanted)).letters]


async def own_letters(shown: Shown, group: str, count: int) -> list[str]:
    """Dead letters of a group and topic of a test's own."""
    await shown.traffic.create_topic(f"of-{group}")
    return await shown.traffic.kill(group, f"of-{group}", count, "PaymentRefused")


async def dry_run(shown: Shown, action: str, **wanted: str) -> tuple[str, dict[str, str]]:
    """Text of a dry run, and the fields of its form."""
    answer = await shown.browser.get(f"/dead-letters/{action}", params=wanted)
    assert answer.status_code == 200
    found = re.search(r'id="found">(.*?)</p>', answer.text)
    assert found
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text))
    return re.sub(r"<[^>]+>", "", found[1]), fields


async def begin(shown: Shown, action: str, fields: dict[str, str], **more: str) -> str:
    """Starts the job; its page."""
    answer = await shown.browser.post(f"/dead-letters/{action}", fields | more, page=OF_BILLING)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def ended(shown: Shown, job: str) -> str:
    """The job's page, once it runs no more."""
    async with asyncio.timeout(60):
        while True:
            page = (await shown.browser.get(job)).text
            if "<strong>Running</strong>" not in page:
                return page
            await asyncio.wait_for(shown.cluster.settle(), 60)


async def test_dead_letters_are_grouped_by_error_and_handler(shown: Shown) -> None:
    first, second, *letters = rows((await shown.browser.get(OF_BILLING)).text)
    assert first.startswith("PaymentRefused: order # is refused charge (worker.py:31) 12 ")
    assert second.startswith("TimeoutError: bank answered nothing within # s charge (worker.py:31) 5 ")
    assert len(letters) == 17
    groups = rows((await shown.browser.get("/dead-letters")).text)
    assert f"{BILLING} 17 20" in groups


async def test_newest_dead_letters_come_first_page_by_page(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_console.pages.dead_letters._SHOWN", 4)
    await own_letters(shown, "newest", 5)
    first = (await shown.browser.get("/dead-letters?group=newest")).text
    (link,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = (await shown.browser.get(html.unescape(link))).text
    listed = re.findall(r'class="mono" href="/dead-letters/letters/([^?]+)\?', first + second)
    assert listed == await left(shown.traffic, "newest", newest_first=True)


async def test_a_filter_selects_and_is_in_the_address(shown: Shown) -> None:
    page = (await shown.browser.get(f"{OF_BILLING}&error=timeouterror")).text
    assert len(rows(page)) == 1 + 5
    assert "No dead letter of billing matches" in (await shown.browser.get(f"{OF_BILLING}&topic=other")).text
    wrong = await shown.browser.get(f"{OF_BILLING}&from=soon")
    assert wrong.status_code == 422
    assert "is not a time" in wrong.text
    assert (await shown.browser.get("/dead-letters?group=no-such-group")).status_code == 404


async def test_a_dead_letter_shows_its_attempts_and_body(shown: Shown) -> None:
    letter, *_ = await left(shown.traffic, BILLING)
    page = (await shown.browser.get(f"/dead-letters/letters/{letter}?group={BILLING}")).text
    assert "bank.charge(order)" in page
    assert "{&#34;order&#34;: 1}" in page
    assert (await shown.browser.get(f"/dead-letters/letters/none?group={BILLING}")).status_code == 404


async def test_dead_letters_are_exported_as_json_lines(shown: Shown) -> None:
    answer = await shown.browser.get(f"/dead-letters/export?group={BILLING}&error=TimeoutError")
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert "attachment" in answer.headers["content-disposition"]
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) == 5
    assert {line["topic"] for line in lines} == {ORDERS}
    assert lines[0]["attempts"][0]["error_type"] == "TimeoutError"
    assert (await shown.browser.get("/dead-letters/export?group=no-such-group")).status_code == 404


async def test_redrive_reports_a_count_and_then_redelivers(shown: Shown) -> None:
    await own_letters(shown, "again-please", 6)
    told, fields = await dry_run(shown, "redrive", group="again-please")
    assert told.startswith("6 dead letters would be returned to the group. Nothing is changed yet.")
    assert len(await left(shown.traffic, "again-please")) == 6
    job = await begin(shown, "redrive", fields, rate="0")
    page = await ended(shown, job)
    assert "Done" in page
    assert "6 of 6" in page
    assert await left(shown.traffic, "again-please") == []
    assert len(await shown.traffic.receive("again-please", "of-again-please", 6)) == 6
    assert "Redrive, done" in (await shown.browser.get("/dead-letters?group=again-please")).text


async def test_a_discard_takes_those_that_the_filter_selects(shown: Shown) -> None:
    first, *others = await own_letters(shown, "discarding", 4)
    told, fields = await dry_run(shown, "discard", group="discarding", ids=first)
    assert told.startswith("1 dead letter would be deleted for good.")
    await ended(shown, await begin(shown, "discard", fields, rate="0"))
    assert sorted(await left(shown.traffic, "discarding")) == sorted(others)


async def test_no_more_is_taken_than_the_dry_run_has_counted(shown: Shown) -> None:
    await own_letters(shown, "growing", 3)
    _, fields = await dry_run(shown, "discard", group="growing")
    await shown.traffic.kill("growing", "of-growing", 2, "TimeoutError")
    await ended(shown, await begin(shown, "discard", fields, rate="0"))
    assert len(await left(shown.traffic, "growing")) == 2


async def test_nothing_is_done_without_its_dry_run(shown: Shown) -> None:
    await own_letters(shown, "guarded", 3)
    _, fields = await dry_run(shown, "redrive", group="guarded", error="PaymentRefused")
    for wrong in ({"proof": ""}, {"proof": "x"}, {"error": ""}, {"group": BILLING}):
        answer = await shown.browser.post("/dead-letters/redrive", fields | wrong | {"rate": "0"}, page=OF_BILLING)
        assert answer.status_code == 409
        assert "Nothing was changed" in answer.text
    # That of a redrive is none of a discard.
    assert (await shown.browser.post("/dead-letters/discard", fields, page=OF_BILLING)).status_code == 409
    answer = await shown.browser.post("/dead-letters/redrive", fields | {"rate": "-1"}, page=OF_BILLING)
    assert answer.status_code == 422
    assert len(await left(shown.traffic, "guarded")) == 3
    assert len(await left(shown.traffic, BILLING)) == 17


async def test_a_form_without_the_session_s_proof_is_refused(shown: Shown) -> None:
    await own_letters(shown, "csrf", 1)
    _, fields = await dry_run(shown, "discard", group="csrf")
    answer = await shown.browser.client.post("/dead-letters/discard", data=fields | {"csrf": "x", "rate": "0"})
    assert answer.status_code == 403
    assert len(await left(shown.traffic, "csrf")) == 1


async def test_a_stopped_job_keeps_finished_work(shown: Shown) -> None:
    """The rate is one in a thousand seconds of a clock that stands: the first is taken, the next never."""
    await own_letters(shown, "slowly", 5)
    _, fields = await dry_run(shown, "redrive", group="slowly")
    job = await begin(shown, "redrive", fields, rate="0.001")
    part = await shown.browser.get(job, headers={"hx-request": "true"})
    assert part.text.startswith('<div id="job" hx-get=')
    assert (await shown.browser.post(f"{job}/stop", page=OF_BILLING)).status_code == 303
    assert "Stopped" in await ended(shown, job)
    assert len(await left(shown.traffic, "slowly")) >= 4
    assert (await shown.browser.get("/dead-letters/jobs/none")).status_code == 404


async def test_few_jobs_run_at_once(shown: Shown) -> None:
    # Each job takes one, and then waits on a clock that stands.
    await own_letters(shown, "crowded", 12)
    _, fields = await dry_run(shown, "redrive", group="crowded")
    jobs = []
    for _ in range(10):
        answer = await shown.browser.post("/dead-letters/redrive", fields | {"rate": "0.001"}, page=OF_BILLING)
        if answer.status_code != 303:
            break
        jobs.append(answer.headers["location"])
    assert answer.status_code == 409
    assert "4 redrives and discards are running" in answer.text
    for job in jobs:
        await shown.browser.post(f"{job}/stop", page=OF_BILLING)
        await ended(shown, job)
    assert len(await left(shown.traffic, "crowded")) >= 1


async def test_a_console_that_only_reads_offers_nothing_and_refuses_all(shown: Shown) -> None:
    async with running(shown.cluster.address, read_only=True) as browser:
        for path in ("/topics", "/groups", f"/groups/{BILLING}", "/lanes/0/16", OF_BILLING):
            answer = await browser.get(path)
            assert answer.status_code == 200
            assert not re.search(r'<form method="post" action="/(?!sign)', answer.text), path
            assert not re.search(r"New topic|New group|(Redrive|Discard) all|Reset offsets", answer.text), path
        forms = {
            "/topics": {"name": "never"},
            "/groups": {"name": "never"},
            f"/groups/{BILLING}/policy": {"backoff": "1s"},
            f"/groups/{BILLING}/limit": {"rate": "1/s"},
            f"/groups/{BILLING}/reset": {"topic": ORDERS, "to": "latest"},
            "/lanes/0/16/pause": {},
        }
        for path, fields in forms.items():
            answer = await browser.post(path, fields, page="/topics")
            assert answer.status_code == 403, path
            assert "is read-only" in answer.text
        for path in (f"/dead-letters/discard?group={BILLING}", f"/groups/{BILLING}/reset?topic={ORDERS}&to=latest"):
            assert (await browser.get(path)).status_code == 403
        lines = (await browser.get(f"/dead-letters/export?group={BILLING}")).text.splitlines()
        assert len(lines) == 17
