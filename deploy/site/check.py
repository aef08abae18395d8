"""Checks of the documents without a site: links have targets, and new pages keep the rules of prose.

python -m deploy.site.check         prints faults, a line each
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.site.documents import PROJECT, anchors, documents, links, prose

# Pages for new users.
GUIDES = (
    "README.md",
    "docs/tutorial.md",
    "docs/howto/*.md",
    "docs/concepts/*.md",
    "docs/reference/*.md",
    "examples/*.md",
)
WORDS_MAX = 45

# Words that make a sentence hard to read, or promise too much.
_FILLERS = re.compile(
    r"\b(simply|easily|just|basically|obviously|in order to|utili[sz]e|leverage|seamless(ly)?)\b", re.I
)
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
# An example: `What was clamped is in the answer.`
_CLAUSE = re.compile(r"(?:What|Who|Whoever|Whatever|Whichever)\b[^?]*$")


def broken_links(path: Path) -> Iterator[str]:
    """Links of a document to files or headings that do not exist."""
    text = path.read_text()
    for number, link in links(text):
        name, _, anchor = link.partition("#")
        aim = (path.parent / name).resolve() if name else path
        if not aim.is_file():
            yield f"{path}:{number}: the target {link} is missing"
        elif anchor and aim.suffix == ".md" and anchor not in anchors(aim.read_text()):
            yield f"{path}:{number}: {aim.name} has no heading #{anchor}"


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of a document's paragraphs and list items, with the line where each paragraph begins."""
    paragraph, start = "", 0
    for number, line in [*prose(text), (0, "")]:
        is_prose = line.strip() and not re.match(r"\s*(\||#|<!--|    )", line)
        is_item = _ITEM.match(line)
        if paragraph and (not is_prose or is_item):
            for sentence in re.split(r"(?<=[.:?!])\s+", paragraph):
                yield start, sentence
            paragraph = ""
        if is_prose:
            start = start if paragraph else number
            paragraph = f"{paragraph} {_ITEM.sub('', line).strip()}".strip()


def hard_to_read(path: Path) -> Iterator[str]:
    """Sentences with a clause for a subject, with fillers, or too long."""
    for number, sentence in sentences(path.read_text()):
        shown = sentence if len(sentence) < 80 else f"{sentence[:77]}..."
        if found := _FILLERS.search(sentence):
            yield f"{path}:{number}: omit {found[0]!r}: {shown}"
        if _CLAUSE.match(sentence):
            yield f"{path}:{number}: a clause is the subject: {shown}"
        if len(sentence.split()) > WORDS_MAX:
            yield f"{path}:{number}: a sentence of more than {WORDS_MAX} words: {shown}"


def main() -> int:
    found = [fault for path in documents() for fault in broken_links(path)]
    guides = sorted({path for pattern in GUIDES for path in PROJECT.glob(pattern)})
    found += [fault for path in guides for fault in hard_to_read(path)]
    for fault in found:
        print(fault.replace(f"{PROJECT}/", ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
