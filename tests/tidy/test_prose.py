"""Prose is clear at first reading: no file has more of the four habits than its limit or its exception allows."""

from pathlib import Path

import pytest

from tests.tidy import prose
from tests.tidy.prose import Counts, Prose

CODE = '''
"""Sends what is due. Sends messages."""

PATTERN = """
# By no comment.
"""
mark = "# Of no comment"


def send() -> None:
    """Returns the message that was stored in a file that is full.

    It goes on until it is stopped.
    """
    # Of three shards,
    # one is full.
    return mark  # whoever asks is heard
'''


def counts_of(tmp_path: Path, file: str, text: str) -> Counts:
    path = tmp_path / file
    path.write_text(text)
    return prose.read(path).counts


def test_prose_keeps_the_limits_or_gets_better() -> None:
    found = prose.everything()
    assert len(found) > 1000
    assert list(prose.beyond(found, prose.exceptions())) == []


def test_docstrings_and_comments_are_read_and_strings_are_not(tmp_path: Path) -> None:
    assert counts_of(tmp_path, "a.py", CODE) == Counts(free=2, two=1, banned=2, fronted=1)


def test_documents_are_read_without_code_headings_and_quotes(tmp_path: Path) -> None:
    text = (
        "# What it does\n\nSend `whatever it is` on.\n\n```\nwhat is code\n```\n\n- What is it for?\n- What it has.\n"
    )
    assert counts_of(tmp_path, "a.md", text) == Counts(free=1)
    assert counts_of(tmp_path, "b.md", "| it keeps what is due | names that are read, which are short |\n") == Counts(
        1, 1
    )


def test_comments_of_the_contract_are_read(tmp_path: Path) -> None:
    text = "message A {\n  // What is left of it.\n  string path = 1; // The name by which it goes on.\n}\n"
    assert counts_of(tmp_path, "a.proto", text) == Counts(free=1, banned=1)


@pytest.mark.parametrize(
    ("sentence", "is_free"),
    [
        ("It returns what the store has.", True),
        ("It says who asked for it.", True),
        ("The client who asked gets it.", False),
        ("What does it return?", False),
        ("It returns the message.", False),
    ],
)
def test_clause_in_place_of_a_noun_is_found(sentence: str, is_free: bool) -> None:
    counted = Prose()
    counted.add(sentence)
    assert counted.counts.free == is_free


def test_a_limit_grows_with_the_file_and_an_exception_never_does() -> None:
    bad = Prose()
    for sentence in ["It keeps what is due.", *["It keeps it all."] * 66]:
        bad.add(sentence)
    assert bad.limits == Counts(free=1)
    bad.add("It keeps what is late.")
    assert list(prose.beyond({"a": bad}, {"a": Counts(free=2)})) == []
    assert "2 of 68 sentences, 1 allowed" in next(prose.beyond({"a": bad}, {}))
    assert prose.lower({"a": bad, "b": bad}, {"a": Counts(5, 3), "gone": Counts(2)}) == {"a": Counts(2)}
    assert prose.lower({"a": Prose()}, {"a": Counts(5)}) == {}
