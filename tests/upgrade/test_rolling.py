"""`make upgrade-test`: a loaded cluster of the release becomes this version's, process by process, and goes back.

Two clients send, pull and consume all the while, one with the release's SDK and one with this version's. Every message
is accounted for: acknowledged, in its topic once, never early, and done for its group once.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest
from duetime import DeadLetters, Puller

from tests.cli.cluster import run_duetime
from tests.upgrade import release
from tests.upgrade.journal import Journal
from tests.upgrade.parts import ORDER, SHARDS, THIS_PYTHON, Client, Parts

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(900)]

THIS = version("duetime")
# Load after each replacement.
STEP_S = 4.0
DRAIN_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path, release_python: Path) -> Iterator[Parts]:
    assert release.VERSION != THIS
    with Parts(tmp_path, {release.VERSION: release_python, THIS: THIS_PYTHON}) as cluster:
        yield cluster


def roll(cluster: Parts, to: str, names: tuple[str, ...], number: signal.Signals = signal.SIGTERM) -> None:
    """Process by process, with some load between."""
    for name in names:
        away_s = cluster.replace(name, to, number)
        print(f"{name} is {to} after {away_s:.1f} s; {cluster.versions()}")
        time.sleep(STEP_S)


def test_cluster_is_upgraded_and_taken_back_under_load(cluster: Parts, release_python: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        clients = [
            Client(python, cluster.address, name, tmp_path)
            for name, python in (("sdk-of-the-release", release_python), ("sdk-of-this-version", THIS_PYTHON))
        ]
        for client in clients:
            stack.callback(client.kill)
        time.sleep(STEP_S)
        was = cluster.migrate(release.VERSION)
        schema = cluster.migrate(THIS)
        print(f"schema {was} -> {schema}")
        roll(cluster, THIS, ORDER)
        if schema == was:
            # A process does not start on a schema that is newer than itself.
            roll(cluster, release.VERSION, ORDER[::-1])
            roll(cluster, THIS, ORDER, signal.SIGKILL)
        for client in clients:
            client.stop_sending()
        for client in clients:
            client.finish(DRAIN_S)
        for client in clients:
            account(client, cluster.address)
    for shard in range(SHARDS):
        cluster.parts[f"store-{shard}"].end(signal.SIGTERM)
        report = run_duetime("store", "verify", tmp_path / f"store-{shard}")
        assert report.returncode == 0, report.stdout.decode()


def account(client: Client, address: str) -> None:
    """Compares a client's receipts with its observations."""
    journal = Journal.read(client.events.read_text().splitlines())
    assert journal.refused == {}
    assert journal.stored.keys() == journal.sending.keys()
    assert journal.wrong_bodies == []
    assert journal.pulled.keys() == journal.stored.keys(), sorted(journal.stored.keys() - journal.pulled.keys())[:10]
    assert {name: count for name, count in journal.pulled.items() if count > 1} == {}
    assert [late for late in journal.late_ms if min(late[1:]) < 0] == []
    assert journal.received_again == [], "acknowledged, and given out again"
    missing = journal.stored.keys() - journal.acked - journal.dead
    assert not missing, f"neither acknowledged nor dead: {sorted(missing)[:10]}"
    assert not journal.acked & journal.dead
    assert journal.done
    assert journal.found.keys() == {True}
    with Puller(address, client.name, group=f"{client.name}-readers") as puller:
        assert puller.positions == journal.committed
        assert sum(puller.positions.values()) == len(journal.stored)
    with DeadLetters(address, client.name) as letters:
        assert {letter.id for letter in letters.list()} == journal.dead
    late_ms = sorted(late for _, late, _ in journal.late_ms)
    late = "/".join(str(late_ms[len(late_ms) * share // 1000]) for share in (500, 990, 999))
    print(
        f"{client.name}: {len(journal.stored)} messages, {len(late_ms)} of them delayed: each once in its topic, none "
        f"early, late p50/p99/p99.9/max {late}/{late_ms[-1]} ms; {journal.received.total()} deliveries to the group, "
        f"{len(journal.acked)} acknowledged, {len(journal.dead)} dead; {len(journal.errors)} calls made again"
    )
