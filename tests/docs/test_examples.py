"""The Python examples of the documents, run as written, each in a separate process against a separate cluster.

`localhost:9800` or `127.0.0.1:9800` in them is the cluster's address. A comment above a block gives further
instructions:

    <!-- example: endless -->             it runs until it is stopped, which happens once it has printed something
    <!-- example: tests -->               it is a file of tests, and they pass
    <!-- example: not run: REASON -->     it is not run; these are counted here
    <!-- file: NAME -->                   it is a part of a program, which test_howto.py runs
"""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from duetime import Message, Producer, Receipt
from duetime_core.testing import LocalCluster

from tests.ending import ended

PROJECT = Path(__file__).resolve().parents[2]
# Followed step by step by a test of its own.
TUTORIAL = PROJECT / "docs" / "tutorial.md"
DOCS = [page for page in sorted((PROJECT / "docs").rglob("*.md")) if page != TUTORIAL]
PAGES = [PROJECT / "README.md", PROJECT / "sdk" / "README.md", *DOCS]
DEADLINE_S = 110.0
NOT_RUN_COUNT = 0

_BLOCK = re.compile(
    r"(?:^<!-- (?P<kind>example|file): (?P<mark>.*?) -->\n)?^ *```python\n(?P<code>.*?)^ *```$", re.M | re.S
)
_MARKS = re.compile(r"endless|tests|not run: .+")
_PLAIN = ["-W", "error"]
_PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]


@dataclass(frozen=True)
class Example:
    page: str
    line: int
    mark: str
    code: str


def examples() -> list[Example]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("code")) + 1
            code = textwrap.dedent(block["code"])
            if block["kind"] != "file":
                found.append(Example(str(page.relative_to(PROJECT)), line, block["mark"] or "", code))
    return found


EXAMPLES = examples()


def test_all_blocks_are_found_and_marked_as_the_rules_have_it() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert len(EXAMPLES) == len(re.findall(r"^ *```python", text, re.M)) - text.count("<!-- file: ") > 5
    assert text.count("<!-- example: ") == sum(bool(example.mark) for example in EXAMPLES)
    assert [example.mark for example in EXAMPLES if example.mark and not _MARKS.fullmatch(example.mark)] == []
    assert sum(example.mark.startswith("not run") for example in EXAMPLES) == NOT_RUN_COUNT


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            example,
            id=f"{example.page}:{example.line}",
            # Spark takes long to start; tests/spark has the same calls.
            marks=[pytest.mark.proof] if example.page == "docs/spark.md" else [],
        )
        for example in EXAMPLES
        if not example.mark.startswith("not run")
    ],
)
def test_example_runs(example: Example, tmp_path: Path) -> None:
    with LocalCluster(gateway_settings={"secrets_key": "A" * 43 + "="}) as cluster:
        with Producer(cluster.address) as producer:
            sent = producer.send_many(
                Message("orders", b"settle 42", tags=tag, keys=["42"], properties={"size": "6"})
                for tag in ("paid", "refunded", "timeout")
            )
        assert all(isinstance(receipt, Receipt) for receipt in sent)
        # As a file, so that a trace shows the line.
        path = tmp_path / "example.py"
        path.write_text(re.sub(r"(localhost|127\.0\.0\.1):9800", cluster.address, example.code))
        process = subprocess.Popen(
            [sys.executable, *(_PYTEST if example.mark == "tests" else _PLAIN), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"DUETIME_SERVER": cluster.address, "PYTHONUNBUFFERED": "1"},
            cwd=tmp_path,
        )
        try:
            if example.mark == "endless":
                assert process.stdout is not None
                readable, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
                assert readable, "it prints nothing"
                process.send_signal(signal.SIGINT)
            output, errors = ended(process, DEADLINE_S)
        finally:
            process.kill()
            process.communicate()
    if example.mark == "endless":
        assert output, errors.decode()
        # A program that does not drain is interrupted.
        assert process.returncode in (0, -signal.SIGINT), errors.decode()
    else:
        assert process.returncode == 0, (output + errors).decode()
        assert errors == b"" or b"Traceback" not in errors, errors.decode()
