"""The site is whole: every page of the reference has its subject, links lead somewhere, and nothing is fetched."""

import re
from pathlib import Path

import duetime
import pytest
from duetime_core.errors import DueTimeError

from deploy.site import build, check, command, documents, rpcs, sdk, tables, tape


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {path.name: text for path, text in build.reference()}


def test_every_public_name_of_the_sdk_has_a_heading() -> None:
    text = "".join(sdk.page(name) for name in sdk.pages())
    headings = set(re.findall(r"^##+ (\S+)$", text, re.M))
    assert set(duetime.__all__) - headings == set()
    assert {"Producer.send", "Producer.send_message", "ReceivedMessage.body", "Consumer.handler"} <= headings
    assert "None = None\n" not in text


def test_names_are_on_the_page_of_their_purpose() -> None:
    names = {page: names for page, (_, names) in sdk.pages().items()}
    assert set(names) == set(sdk.TITLES)
    assert {"Producer", "AsyncProducer", "Message", "Token"} <= set(names["sending"])
    assert {"Transaction", "Prepared", "UndecidedMessage", "Decision", "FoundTransaction"} == {
        name for name in names["transactions"] if name not in ("AsyncTransaction", "Ended")
    }
    assert {"Consumer", "Puller", "ReceivedMessage"} <= set(names["consuming"])


def test_name_of_a_new_folder_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duetime, "__all__", [*duetime.__all__, "Novelty"])
    monkeypatch.setitem(duetime._MODULE_BY_NAME, "Novelty", "inventing.novelty")
    assert sdk.pages()["inventing"] == ("duetime", ["Novelty"])
    assert '{"Inventing" = "docs/reference/sdk/inventing.md"}' in build.configuration()


def test_docstrings_become_lists() -> None:
    text = sdk.markdown(
        """Does it.

        Arguments:
            first, second: what they
                are.

        Raises:
            NotFound: there is none.

        Afterwards.
        """
    )
    assert text == (
        "Does it.\n\n\n**Arguments:**\n\n- `first, second`: what they\n    are.\n\n\n**Raises:**\n\n"
        "- `NotFound`: there is none.\n\nAfterwards."
    )


def test_every_call_and_message_of_the_contract_has_a_heading() -> None:
    for name, file in rpcs.files().items():
        headings = re.findall(r"^## (\S+)$", rpcs.page(name), re.M)
        wanted = [method.name for service in file.service for method in service.method]
        wanted += [each.name for each in [*file.message_type, *file.enum_type]]
        assert set(wanted) - set(headings) == set(), name
    assert "Idempotent by topic and message id" in rpcs.page("gateway")


def test_every_error_metric_and_setting_has_a_heading(pages: dict[str, str]) -> None:
    reasons = {kind.reason for kind in _below(DueTimeError) if kind.__name__ != "StartupError"}
    assert reasons - set(re.findall(r"^## (\S+)$", tables.errors(_PLACE), re.M)) == set()
    metrics = re.findall(r"^## (\S+)$", pages["metrics.md"], re.M)
    assert len(metrics) == len(set(metrics)) > 100
    assert "duetime_store_lane_overdue_ms" in metrics
    assert pages["settings.md"].count('<span id="duetime_') > 100
    assert 'id="duetime_store_flush_mode"' in pages["settings.md"]
    assert 'id="duetime_gateway_store_timeout_ms"' in pages["settings.md"]


_PLACE = documents.PROJECT / "docs" / "reference" / "errors.md"


def _below(kind: type[DueTimeError]) -> list[type[DueTimeError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _below(child))]


def test_page_of_the_command_has_the_present_help() -> None:
    text = command.PAGE.read_text()
    assert text == command.page(text), "python -m deploy.site.command writes it again"
    headings = re.findall(r"^### (.*)$", text, re.M)
    assert {"duetime", "duetime up", "duetime dlq redrive", "duetime store import"} <= set(headings)


@pytest.mark.timeout(300)
def test_site_is_built_and_needs_no_other_host(tmp_path: Path) -> None:
    html = build.build(tmp_path / "site")
    names = {str(path.relative_to(html)) for path in html.rglob("*.html")}
    assert {
        "index.html",
        "docs/tutorial.html",
        "docs/reference/errors.html",
        "docs/adr/0004-find-services-by-entry-points.html",
    } <= names
    assert (html / "docs" / "pictures" / "tape.svg").is_file()


def test_page_that_loads_from_elsewhere_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script src="https://example.com/a.js"></script>')
    (tmp_path / "b.html").write_text('<link rel="stylesheet" href="https://example.com/a.css">')
    (tmp_path / "c.html").write_text('<a href="https://example.com">a link</a><img src="c.png">')
    assert [Path(page).name for page in build.loaded_from_elsewhere(tmp_path)] == ["a.html", "b.html"]


def test_documents_have_no_broken_links_and_guides_read_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert (check.main(), capsys.readouterr().out) == (0, "")


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One heading\n\n## Two `words`\n\n## Two words\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md#one-heading) [b](other.md#two-words-1) [c](#page) [d](https://example.com/x)\n"
        "[e](gone.md) [f](other.md#gone)\n`[g](gone.md)` [h\nwrapped](#gone)\n```\n[i](gone.md)\n```\n"
    )
    faults = [fault.partition(": ")[2] for fault in check.broken_links(page)]
    assert faults == ["the target gone.md is missing", "other.md has no heading #gone", "page.md has no heading #gone"]


def test_prose_that_is_hard_to_read_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What this is\n\nWhat was clamped is in the answer. What is a lane? It is a queue.\n\n"
        f"- Simply run it.\n\n{'word ' * 50}\n\n| What is in a table | counts not |\n"
    )
    faults = [fault.partition(": ")[2] for fault in check.hard_to_read(page)]
    assert [fault.partition(":")[0] for fault in faults] == [
        "a clause is the subject",
        "omit 'Simply'",
        "a sentence of more than 45 words",
    ]


def test_links_move_with_their_page() -> None:
    docs = documents.PROJECT / "docs"
    text = "[a](limits.md#of-a-store) [b](#errors) [c](../services/store/README.md) `[d](e.md)` [f](https://g.h)\n[i](../examples/jobs.py)"
    assert documents.relinked(text, docs / "protocol.md", docs / "reference" / "errors.md") == (
        "[a](../limits.md#of-a-store) [b](../protocol.md#errors) [c](../../services/store/index.md) `[d](e.md)`"
        " [f](https://g.h)\n[i](../../examples/index.md#jobspy)"
    )


def test_tape_equals_a_terminals_screen() -> None:
    screen = tape.Screen()
    screen.write("one\r\n\x1b[32mtwo\x1b[0m\r\nwaiting")
    screen.write("\r\x1b[2Kthree\r\nwaiting\r\x1b[2K\x1b[1A\x1b[2Kfour\r\n")
    assert screen.lines() == ["one", "\x1b[32mtwo\x1b[0m", "four", ""]
    picture = tape.drawn(["$ duetime lanes", "\x1b[32mtwo\x1b[0m"])
    assert "two" in picture
    assert re.findall(r"https?://(?!www\.w3\.org|www\.textualize\.io|textualize\.io)[^\s\"')]+", picture) == []
