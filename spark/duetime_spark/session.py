"""The Spark session: embedded by default, or on the cluster named by `--master` or spark-submit."""

import os
import select
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from duetime_format.texts import visible
from pyspark.sql import SparkSession

from duetime_spark.java import find_java, is_submitted
from duetime_spark.sieve import Sieve
from duetime_spark.source import register

EMBEDDED = "local[*]"
_LOG4J = Path(__file__).with_name("log4j2.properties")
# The parallel collector is cheaper than the default one: 6.9 s of two cores, not 8.5 s, for a backlog of 20 million.
_JAVA = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -XX:+UseParallelGC"
# Short jobs end before the second compiler pays for itself: it takes 10 s of processor time at least.
_JAVA_BRIEF = f"{_JAVA} -XX:TieredStopAtLevel=1"
_SETTINGS = {
    "spark.driver.memory": "2g",
    # Connects the JVM and Python's workers on one machine: 5.0 M entries/s instead of 3.6 M by loopback.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # The data source's batches are smaller than this, and are not split.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
    # Replaces a snapshot's folder and keeps its neighbours.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def start(
    master: str | None = None, settings: Mapping[str, str] | None = None, *, is_brief: bool = False
) -> SparkSession:
    """A session with the data source, with this Python for its workers; a running session is used as it is.

    Args:
        master: None: spark-submit's, else all cores of this machine.
        settings: Spark's own (`spark.…`), over ours.
        is_brief: few rows go through the JVM, and the session is short.

    Raises:
        StartupError: Java for Spark is missing.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("duetime")
    if not is_submitted():
        find_java()
        master = master or EMBEDDED
    if master is not None:
        builder = builder.master(master)
    loopback = _LOOPBACK if master is not None and master.startswith("local") else {}
    java = {"spark.driver.extraJavaOptions": _JAVA_BRIEF if is_brief else _JAVA}
    for name, value in {**_SETTINGS, **java, **loopback, **(settings or {})}.items():
        builder = builder.config(name, value)
    with _without_noise():
        session = builder.getOrCreate()
    register(session)
    return session


@contextmanager
def _without_noise() -> Iterator[None]:
    """Processes started in this context write their standard error through the sieve until they end."""
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, kept), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 2)


def _pass_on(reading: int, to: int) -> None:
    """Copies through the sieve until the last writer has ended."""
    sieve = Sieve()
    texts = getincrementaldecoder("utf-8")("backslashreplace")
    while True:
        wait_s = None if sieve.until_s is None else max(sieve.until_s - time.monotonic(), 0.0)
        ready, _, _ = select.select([reading], [], [], wait_s)
        piece = os.read(reading, 65_536) if ready else b""
        if ready and not piece:
            break
        _write(to, texts.decode(sieve.take(piece, time.monotonic())))
    _write(to, texts.decode(sieve.rest(), final=True))
    os.close(reading)
    os.close(to)


def _write(to: int, text: str) -> None:
    """Errors of workers may hold a sender's text."""
    left = visible(text).encode()
    while left:
        left = left[os.write(to, left) :]
