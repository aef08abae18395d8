"""A real RocketMQ broker on a directory: a Java process of its own, without a name server."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.brokers.remoting import HEARTBEAT, Client

HERE = Path(__file__).parent
# Version, and the version of the modules that Maven Central does not serve in it.
VERSIONS = {"5.3.3": "5.3.3", "5.5.1": "5.5.0"}
ROCKSDB_TIMERS = {"timerRocksDBEnable": True}
# Java 17 hides classes that the broker uses.
_OPENED = [
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
]
_JAVA = ["java", "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_OPENED]
_START_S, _STOP_S = 120.0, 120.0
_PAUSE_S = 0.1


def install(version: str, folder: Path) -> Path:
    """The folder of a broker's jars, from Maven Central."""
    assert shutil.which("mvn"), "mvn is missing"
    shutil.copy(HERE / "pom.xml", folder)
    jars = folder / "jars"
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
         f"-Dbroker={version}", f"-Drest={VERSIONS[version]}"],
        cwd=folder, check=True,
    )  # fmt: skip
    assert (jars / f"rocketmq-broker-{version}.jar").exists()
    return jars


def free_ports() -> tuple[int, int]:
    """Ports for clients and replicas. A broker also listens two below the first. They are below those that a system
    gives to connections: a client that tries too early would else be connected with itself."""
    while True:
        port = random.randrange(12_000, 30_000)
        with ExitStack() as stack:
            try:
                for number in (port - 2, port, port + 1):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return port, port + 1


class Broker:
    """A running broker. `folder`: its home, with its configuration, output and logs."""

    def __init__(self, jars: Path, store: Path, settings: Mapping[str, object], folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.port, replicas = free_ports()
        told: dict[str, object] = {
            "brokerName": "broker-a", "brokerId": 0, "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": replicas, "storePathRootDir": store, "storePathCommitLog": store / "commitlog",
            "fileReservedTime": 24 * 365, "diskMaxUsedSpaceRatio": 99, "transactionTimeOut": 1_000,
            "transactionCheckInterval": 2_000, "transactionCheckMax": 10_000, **settings,
        }  # fmt: skip
        lines = [f"{name}={str(value).lower() if value is True else value}\n" for name, value in told.items()]
        (folder / "broker.conf").write_text("".join(lines))
        self.began_ms = time.time_ns() // 1_000_000
        with (folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [*_JAVA, f"-Duser.home={folder}", "-cp", f"{jars}/*", "org.apache.rocketmq.broker.BrokerStartup",
                 "-c", str(folder / "broker.conf")],
                cwd=folder, env={**os.environ, "ROCKETMQ_HOME": str(folder)}, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def connect(self) -> Client:
        """Waits until the broker answers."""
        give_up = time.monotonic() + _START_S
        while True:
            assert self._process.poll() is None, self.output()
            try:
                client = Client(self.port)
            except OSError:
                assert time.monotonic() < give_up, self.output()
                time.sleep(_PAUSE_S)
                continue
            client.ask(HEARTBEAT, b"{}")
            return client

    def output(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-8_000:]

    def logs(self, name: str) -> str:
        """A log file, whole."""
        (path,) = self._folder.glob(f"logs/rocketmqlogs/**/{name}.log")
        return path.read_text(errors="replace")

    def stop(self) -> None:
        """A clean stop."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running(jars: Path, store: Path, settings: Mapping[str, object], folder: Path) -> Iterator[tuple[Broker, Client]]:
    """A broker on a directory, and a client of it; killed at the end if it still runs."""
    broker = Broker(jars, store, settings, folder)
    try:
        with closing(broker.connect()) as client:
            yield broker, client
    finally:
        broker.kill()
