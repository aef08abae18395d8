"""Messages of workers at a session's end are kept from users, and no others are."""

import pytest
from duetime_spark.sieve import HOLD_S, Sieve
from hypothesis import given
from hypothesis import strategies as st

ZIP = "/opt/x y/python/lib/pyspark.zip/pyspark/daemon.py"
# As PySpark 4.3 has written it, out of its archive and out of a folder.
BARE = f"""Traceback (most recent call last):
  File "{ZIP}", line 264, in manager
  File "{ZIP}", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
""".encode()
WITH_CODE = b"""Traceback (most recent call last):
  File "/lib/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/lib/pyspark/daemon.py", line 95, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = b"""Traceback (most recent call last):
  File "/lib/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
  File "/lib/pyspark/worker.py", line 7, in main
ValueError: a defect
"""
LINE = b"26/01/01 WARN TaskSetManager: Lost task 0.0\n"


def sieved(*pieces: bytes) -> bytes:
    sieve = Sieve()
    return b"".join(sieve.take(piece, 0.0) for piece in pieces) + sieve.rest()


@pytest.mark.parametrize("told", [BARE, WITH_CODE])
@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_final_output_of_idle_workers_is_left_out(told: bytes, size: int) -> None:
    text = LINE + told + LINE + told + told
    assert sieved(*(text[at : at + size] for at in range(0, len(text), size))) == LINE + LINE


def test_interleaved_lines_of_workers_are_sorted_out() -> None:
    lines = [line + b"\n" for line in BARE.splitlines()]
    assert sieved(*(line for pair in zip(lines, lines, strict=True) for line in pair)) == b""
    mixed = [*lines[:2], LINE, lines[0], *lines[2:], *lines[1:]]
    assert sieved(*mixed) == LINE


@given(st.integers(1, len(BARE) - 1), st.booleans())
def test_a_worker_s_text_within_a_line_of_another_s(at: int, code: bool) -> None:
    other = WITH_CODE if code else BARE
    assert sieved(BARE[:at] + other + BARE[at:]) == b""


@pytest.mark.parametrize("text", [OTHER, LINE + OTHER, BARE + OTHER, OTHER + BARE, BARE[:-20], BARE[:100] + b"\n"])
def test_every_other_traceback_is_shown(text: bytes) -> None:
    held = sieved(text)
    assert OTHER in held or held == text
    assert sieved(*(text[n : n + 1] for n in range(len(text)))).count(b"ValueError") == text.count(b"ValueError")


def test_traceback_is_printed_after_a_pause_with_later_lines() -> None:
    sieve = Sieve()
    assert sieve.take(LINE + OTHER, 10.0) == LINE
    assert sieve.until_s == 10.0 + HOLD_S
    assert sieve.take(LINE, 10.5) == b""
    assert sieve.take(b"", 10.0 + HOLD_S) == OTHER + LINE
    assert sieve.until_s is None
    assert sieve.take(LINE, 12.0) == LINE


def test_start_messages_are_left_out() -> None:
    noise = b'WARNING: Using incubator modules: jdk.incubator.vector\nSetting default log level to "WARN".\n'
    assert sieved(noise, LINE, b"half a li", b"ne\n", noise, b"no end") == LINE + b"half a line\nno end"
