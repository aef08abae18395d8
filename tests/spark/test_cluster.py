"""A standalone cluster of two workers on this machine gives the numbers that embedded Spark gives."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duetime_spark
import pyspark
import pytest
from duetime_spark.cli import main
from pyspark.sql import SparkSession

from tests.format import golden

SPARK_HOME = Path(pyspark.__file__).parent
MAIN = Path(duetime_spark.__file__).with_name("__main__.py")
READY_S = 300
# A minute and a half on a quiet machine: two workers, a driver, and Python on each. The limits only end hung runs.
SUBMIT_S = 900
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_DAEMON_MEMORY": "256m",
}


@contextmanager
def daemon(kind: str, *arguments: str, ready: str) -> Iterator[str]:
    """A process of the cluster, and its log line of readiness."""
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(READY_S, process.kill)
    watchdog.start()
    assert process.stderr is not None
    # Later output may not fill the pipe.
    drain = threading.Thread(target=process.stderr.read)
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(ready, line):
                break
        else:
            raise AssertionError(f"{kind} ended: {''.join(said)}")
        drain.start()
        yield found.group(1)
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(READY_S)
        if drain.ident is not None:
            drain.join()
        process.stderr.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = stack.enter_context(daemon("master.Master", *ports, ready=r"Starting Spark master at (spark://\S+)"))
        for number in range(2):
            place = ("--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / f"worker-{number}"))
            stack.enter_context(
                daemon("worker.Worker", *ports, *place, url, ready=r"Successfully registered with master (spark://\S+)")
            )
        yield url


@pytest.mark.proof
def test_two_workers_and_spark_submit_give_the_same_numbers(
    spark: SparkSession, master: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden.unpack("rmq-5.3.3-clean", tmp_path)
    assert main(["backlog", str(store), "--json"]) == 0
    embedded = json.loads(capsys.readouterr().out)
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--conf", "spark.executor.memory=500m"]
    command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    command += [str(MAIN), "backlog", str(store), "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=SUBMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == embedded
    workers = {path.parent.parent.name for path in tmp_path.glob("worker-*/app-*/*")}
    assert workers == {"worker-0", "worker-1"}
