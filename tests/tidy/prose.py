"""Prose that reads as translated, counted per file: four habits, their limits, and the exceptions that shrink.

    python -m tests.tidy.prose                lists sentences beyond the limits and fails if there are any
    python -m tests.tidy.prose FILE...        lists every sentence with a habit in these files
    python -m tests.tidy.prose --lower        lowers the exceptions in prose.txt to the present counts

The check reads Markdown, docstrings, comments and proto comments. Code, headings, questions and words in backquotes are
exempt. It matches words, so it misses some sentences and accuses a few good ones: rephrase those too.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path

from tests.tidy.sources import SOURCES, content, documents, files, name, nodes

EXCEPTIONS = Path(__file__).with_name("prose.txt")
FREE_SHARE_MAX = 0.015
WORDS_MIN = 3

_CLAUSE_START = r"(?:^|[,;:(\u2013]\s*|\b(?:and|as|but|by|for|from|in|is|of|on|or|than|that|to|with|{verbs}) )"
_ASKING_VERBS = "asks?|asked|decides?|knows?|learns?|says?|sees?|shows?|tells?|told"
# A clause in place of a noun: "what it lacks was not sent", "it says who asked".
FREE = re.compile(rf"\b(what|whatever|whoever)\b|{_CLAUSE_START.format(verbs=_ASKING_VERBS)}who\b", re.I)
# "That" begins a relative clause before these words, unless a verb of speech or thought precedes it.
_AFTER_THAT = (
    "a|are|can|come|fall|go|had|has|have|he|is|it|may|need|no|nobody|one|she|stand|the|they|was|we|were|will|you"
)
_BEFORE_THAT = "assume check ensure fact know note say show so such sure"
_NOT_SAID = "".join(rf"(?<!\b{verb} )" for verb in _BEFORE_THAT.split())
RELATIVE = re.compile(
    rf"\b(?:what|whatever|which|who|whoever|whom|whose)\b|{_NOT_SAID}\bthat (?:{_AFTER_THAT})\b", re.I
)
BANNED = re.compile(
    r"\b(whoever|whatever|anew|in vain|so many|told (?:of|by)|tells? of|stands? beside|go(?:es)? on|lets? go"
    r"|becomes? of|no more than that|for ever)\b",
    re.I,
)
FRONTED = re.compile(r"(?:of|by|in|at|on|for|from|with|to)\b", re.I)
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?:])|(?<=[.!?:][*)"'])|(?<=[.!?:]\*\*))\s+(?=[*"]*[A-Z(])""")
_MARKDOWN_LEFT_OUT = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*$|<!--.*?-->|^#.*?$|^    .*?$|^\|[ :|-]+$", re.S | re.M)
_STRING = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_DIRECTIVE = re.compile(r"#(!|:| ?(type:|noqa|cython:|distutils:|fmt:|pragma:))")

# Types looked up, not matched: a million nodes are walked.
_DOCUMENTED = {ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef}
_STRINGS = {ast.Constant, ast.JoinedStr}


@dataclass(frozen=True)
class Counts:
    """Sentences of one file with each habit."""

    free: int = 0
    two: int = 0
    banned: int = 0
    fronted: int = 0

    def lowered(self, to: "Counts") -> "Counts":
        return Counts(*map(min, astuple(self), astuple(to)))

    def raised(self, to: "Counts") -> "Counts":
        return Counts(*map(max, astuple(self), astuple(to)))


@dataclass
class Prose:
    """Sentences of one file, and those with a habit."""

    sentences: int = 0
    found: dict[str, list[str]] = field(default_factory=lambda: {"free": [], "two": [], "banned": [], "fronted": []})

    def add(self, text: str, is_comment: bool = False) -> None:
        """A paragraph, a list item or a whole comment."""
        for number, sentence in enumerate(sentences(text)):
            self.sentences += 1
            if FREE.search(sentence) and not sentence.endswith("?"):
                self.found["free"].append(sentence)
            if len(RELATIVE.findall(sentence)) > 1:
                self.found["two"].append(sentence)
            if BANNED.search(sentence):
                self.found["banned"].append(sentence)
            if is_comment and number == 0 and FRONTED.match(sentence):
                self.found["fronted"].append(sentence)

    @property
    def counts(self) -> Counts:
        return Counts(**{habit: len(found) for habit, found in self.found.items()})

    @property
    def limits(self) -> Counts:
        return Counts(free=int(self.sentences * FREE_SHARE_MAX))


def sentences(text: str) -> Iterator[str]:
    """Sentences of one paragraph, without marks; quoted code counts as one word."""
    text = re.sub(r"``?[^`]*``?", "X", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        stripped = sentence.strip("-*|# ")
        if len(stripped.split()) >= WORDS_MIN:
            yield stripped


def paragraphs(text: str) -> list[str]:
    """Paragraphs, list items and table cells."""
    return re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )|\s\|\s", text)


def docstrings(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if type(node) in _DOCUMENTED:
            yield ast.get_docstring(node) or ""  # type: ignore[arg-type]


def _quoted_lines(path: Path) -> set[int]:
    """Lines of strings that span several."""
    found: set[int] = set()
    for node in nodes(path):
        if type(node) in _STRINGS and node.end_lineno != node.lineno:  # type: ignore[attr-defined]
            found.update(range(node.lineno, node.end_lineno + 1))  # type: ignore[attr-defined]
    return found


def comments(path: Path) -> Iterator[str]:
    """Comments of Python or Cython; lines that follow each other are one."""
    quoted = _quoted_lines(path) if path.suffix == ".py" else set()
    block: list[str] = []
    for number, line in enumerate(content(path).splitlines(), 1):
        if "#" in line and number not in quoted and not _DIRECTIVE.match(line.strip()):
            code, mark, comment = _STRING.sub("", line).partition("#")
            if mark and not code.strip():
                block.append(comment.strip())
                continue
            if mark and not _DIRECTIVE.match(mark + comment):
                yield comment
        if block:
            yield " ".join(block)
            block = []
    yield " ".join(block)


def read(path: Path) -> Prose:
    prose = Prose()
    if path.suffix == ".py":
        for text in docstrings(path):
            for paragraph in paragraphs(_without_code(text)):
                prose.add(paragraph)
    elif path.suffix == ".md":
        for paragraph in paragraphs(_MARKDOWN_LEFT_OUT.sub("\n\n", content(path))):
            prose.add(paragraph)
    elif path.suffix == ".proto":
        for block in re.findall(r"(?:^[^\n\"]*//[^\n]*\n)+", content(path), re.M):
            for paragraph in paragraphs("\n".join(line.partition("//")[2] for line in block.splitlines())):
                prose.add(paragraph)
    if path.suffix in (".py", ".pyx", ".pxd"):
        for text in comments(path):
            prose.add(text, is_comment=True)
    return prose


def _without_code(docstring: str) -> str:
    """A docstring without the blocks that are indented more than their introduction, lists of `Raises:` excepted."""
    return re.sub(r"(?m)(?<=\n\n)(?: {4}.*\n?)+", "\n", docstring)


def everything() -> dict[str, Prose]:
    paths = [
        *documents(),
        *files(*SOURCES, suffixes=(".py", ".pyx", ".pxd")),
        *files("proto/duetime", suffixes=(".proto",)),
    ]
    return {name(path): read(path) for path in paths}


def exceptions() -> dict[str, Counts]:
    """Counts that files may have for now, by name."""
    lines = EXCEPTIONS.read_text().splitlines() if EXCEPTIONS.exists() else []
    split = [line.split() for line in lines if line and not line.startswith("#")]
    return {each: Counts(*map(int, counts)) for each, *counts in split}


def beyond(found: dict[str, Prose], allowed: dict[str, Counts]) -> Iterator[str]:
    """Files with more of a habit than the limit and their exception allow, with the sentences."""
    for each, prose in found.items():
        counts, limits = prose.counts, prose.limits.raised(allowed.get(each, Counts()))
        for habit, sentences in prose.found.items():
            count, limit = getattr(counts, habit), getattr(limits, habit)
            if count > limit:
                listed = "".join(f"\n    {sentence}" for sentence in sentences)
                yield f"{each}: {count} of {prose.sentences} sentences, {limit} allowed: {HABITS[habit]}{listed}"


HABITS = {
    "free": "a what or who clause as a noun",
    "two": "two relative clauses in one sentence",
    "banned": "a banned word",
    "fronted": "a comment that begins with a preposition",
}
HEAD = """\
# Files that exceed the limits of prose.py: free relatives, two relatives, banned words, comments with a preposition in
# front. No count may rise. `make prose` lowers them to the present ones.
"""


def write(allowed: dict[str, Counts]) -> None:
    rows = [f"{each} {' '.join(map(str, astuple(counts)))}\n" for each, counts in sorted(allowed.items())]
    EXCEPTIONS.write_text(HEAD + "".join(rows))


def lower(found: dict[str, Prose], allowed: dict[str, Counts]) -> dict[str, Counts]:
    """Exceptions at the present counts; a file within the limits has none."""
    lowered = {each: counts.lowered(found[each].counts) for each, counts in allowed.items() if each in found}
    return {each: counts for each, counts in lowered.items() if counts.raised(found[each].limits) != found[each].limits}


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts sentences that read as translated.")
    parser.add_argument("paths", nargs="*", type=Path, help="list every sentence with a habit in these files")
    parser.add_argument("--lower", action="store_true", help="lower the exceptions to the present counts")
    given = parser.parse_args()
    if given.paths:
        print("\n".join(beyond({str(path): read(path.resolve()) for path in given.paths}, {})))
        return
    found = everything()
    if given.lower:
        write(lower(found, exceptions()))
    faults = list(beyond(found, exceptions()))
    total = sum(prose.sentences for prose in found.values())
    free = sum(prose.counts.free for prose in found.values())
    print("\n".join([*faults, f"{total} sentences, {100 * free / total:.1f} % free relatives"]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
