"""The metadata database with every fault, while schedulers die: due messages are on time, each once, none early.

For each fault, messages are pending on two levels, a client sends, and the scheduler that serves its lane is killed;
then that one is restarted without having seen the database, and the other one is killed too. Afterwards the cluster is
in its former state.
"""

import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psycopg
import pytest
from duetime import Message, Producer, Puller
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.metadata import upgrade
from sqlalchemy import make_url

from bench.processes import wait_until
from tests.hostile.bystander import Bystander, Phase
from tests.hostile.rig import Node, Rig, told
from tests.postgresql import LocalServer, NoPostgres, own_server

# The documented limit of lateness after a scheduler's death, plus the delay of a busy machine.
LATE_MS_MAX = 2_000
NOISE_MS = 1_500
PENDING = {"5s": 40, "10s": 40}
# Longer than a lane may be late, twice.
PHASE_S = 5.0
ROLE = "duetime"

Trouble = Callable[[], Callable[[], None]]


def lanes(rig: Rig) -> list[gateway_pb2.Lane]:
    with grpc.insecure_channel(rig.address) as channel:
        answer = gateway_pb2_grpc.GatewayStub(channel).ListLanes(gateway_pb2.ListLanesRequest(), timeout=10)
        return list(answer.lanes)


def owner_of(rig: Rig, level: int) -> Node:
    """A member's name has its process's number."""
    owner = next(lane.owner for lane in lanes(rig) if lane.level == level)
    return next(node for node in rig.schedulers if node.alive and f"-{node.pid}-" in owner)


def metric(node: Node, name: str) -> float:
    return node.metrics().get(name, -1.0)


def shared_out(rig: Rig) -> bool:
    """All schedulers see each other, hold equally many lanes within one, serve them, and leave none out."""
    count = len(lanes(rig))
    least = count // len(rig.schedulers)
    owned = [metric(node, "duetime_scheduler_owned_lanes") for node in rig.schedulers]
    served = [metric(node, "duetime_scheduler_served_lanes") for node in rig.schedulers]
    alone = [metric(node, "duetime_scheduler_lanes_without_lease") for node in rig.schedulers]
    fair = sum(owned) == count and min(owned) >= least and max(owned) <= least + 1
    return fair and served == owned and not any(alone)


def send_pending(rig: Rig) -> set[str]:
    """Messages of several levels, that fall due during the trouble."""
    with Producer(rig.address) as producer:
        messages = [
            Message("pending", b"x", id=f"{delay}-{number}", delay=delay)
            for delay, count in PENDING.items()
            for number in range(count)
        ]
        return {receipt.message_id for receipt in producer.send_many(messages)}


def receive_pending(rig: Rig, ids: set[str]) -> list[int]:
    """By message, how late it was. Returns when all are there, and each once."""
    seen: Counter[str] = Counter()
    late: list[int] = []
    with Puller(rig.address, "pending", start="earliest") as puller:
        ends_at_s = time.monotonic() + 60
        while not ids <= seen.keys():
            assert time.monotonic() < ends_at_s, f"missing: {sorted(ids - seen.keys())[:5]}"
            for message in puller.poll(max=1_000, wait="1s"):
                seen[message.id] += 1
                assert message.late_ms is not None
                late.append(message.late_ms)
    assert seen == Counter(ids)
    assert min(late) >= 0
    return late


def checked(phase: Phase, alone: Phase, what: str) -> None:
    told(what=what, late_max=phase.late_max, send_p99=phase.send_p99, send_max=phase.send_max, errors=phase.errors)
    assert phase.errors == {}
    assert phase.early == 0
    assert phase.delayed > 0
    assert phase.late_max <= LATE_MS_MAX + NOISE_MS + alone.late_max


def attack(rig: Rig, trouble: Trouble) -> None:
    wait_until(lambda: shared_out(rig), 30, "lanes are shared out")
    with Bystander(rig.address) as beside:
        alone = beside.measure(2.0)
        ids = send_pending(rig)
        end = trouble()
        try:
            wait_until(lambda: metric(rig.schedulers[0], "duetime_metadata_up") == 0, 30, "the trouble is noticed")
            checked(beside.measure(1.0), alone, "database in trouble")
            killed = owner_of(rig, 1)
            killed.end(signal.SIGKILL)
            checked(beside.measure(PHASE_S), alone, "a scheduler killed")
            killed.restart()
            (other,) = [node for node in rig.schedulers if node is not killed]
            other.end(signal.SIGKILL)
            checked(beside.measure(PHASE_S), alone, "only one that never saw the database")
            assert metric(killed, "duetime_scheduler_owned_lanes") == 0
            assert metric(killed, "duetime_scheduler_lanes_without_lease") > 0
            late = receive_pending(rig, ids)
            told(what="pending", count=len(late), late_max=max(late))
            assert max(late) <= LATE_MS_MAX + NOISE_MS
        finally:
            end()
        other.restart()
        wait_until(lambda: shared_out(rig), 60, "lanes are shared out again")
        for node in (*rig.gateways, *rig.schedulers, rig.retry):
            wait_until(lambda node=node: metric(node, "duetime_metadata_up") == 1, 30, f"{node.name} is well")
        with Producer(rig.address) as producer:
            producer.send(f"new-{time.monotonic_ns()}", b"x")
        checked(beside.measure(2.0), alone, "afterwards")
    for node in (*rig.gateways, *rig.schedulers, rig.retry):
        lines = [line for line in node.log.read_text().splitlines() if "metadata database" in line]
        assert len(lines) <= 8, lines


# --- SQLite -----------------------------------------------------------------------------------------------------------


def sqlite_file(rig: Rig) -> Path:
    return Path(str(make_url(rig.database_url).database))


def damage(path: Path) -> Trouble:
    def begin() -> Callable[[], None]:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        sound = path.read_bytes()
        path.write_bytes(b"\xa5" * len(sound))
        return lambda: put_back(path, sound)

    return begin


def delete(path: Path) -> Trouble:
    def begin() -> Callable[[], None]:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        sound = path.read_bytes()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        return lambda: put_back(path, sound)

    return begin


def put_back(path: Path, sound: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    beside = path.with_suffix(".back")
    beside.write_bytes(sound)
    beside.replace(path)


@pytest.mark.proof
def test_a_file_damaged_while_in_use_delays_nothing(start: Callable[..., Rig]) -> None:
    rig = start(schedulers=2)
    attack(rig, damage(sqlite_file(rig)))


@pytest.mark.proof
def test_a_file_deleted_while_in_use_delays_nothing(start: Callable[..., Rig]) -> None:
    rig = start(schedulers=2)
    attack(rig, delete(sqlite_file(rig)))


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[LocalServer]:
    try:
        made = own_server()
        found = made.__enter__()
    except NoPostgres as error:
        pytest.skip(f"no PostgreSQL: {error}")
    try:
        yield found
    finally:
        made.__exit__(None, None, None)


def execute(server: LocalServer, *statements: str) -> None:
    plain = make_url(server.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'duetime'"


def stopped(server: LocalServer) -> Callable[[], None]:
    server.stop()
    return server.start


def frozen(server: LocalServer) -> Callable[[], None]:
    server.freeze()
    return server.thaw


def read_only(server: LocalServer) -> Callable[[], None]:
    execute(server, "ALTER DATABASE postgres SET default_transaction_read_only = on", OTHERS)
    undo = "SET default_transaction_read_only = off", "ALTER DATABASE postgres RESET default_transaction_read_only"
    return lambda: execute(server, *undo)


def without_privileges(server: LocalServer) -> Callable[[], None]:
    tables = "lane_leases, schedulers, topics, topic_queues, groups"
    execute(server, f"REVOKE ALL ON {tables} FROM {ROLE}")
    return lambda: execute(server, f"GRANT ALL ON {tables} TO {ROLE}")


def without_schema(server: LocalServer) -> Callable[[], None]:
    execute(server, "ALTER SCHEMA public RENAME TO away", "CREATE SCHEMA public")
    return lambda: execute(server, "DROP SCHEMA public", "ALTER SCHEMA away RENAME TO public")


def locked(server: LocalServer) -> Callable[[], None]:
    """As slow as can be: somebody rewrites all tables, and every statement waits."""
    plain = make_url(server.url).set(drivername="postgresql").render_as_string(hide_password=False)
    holder = psycopg.connect(plain)
    holder.execute("LOCK TABLE lane_leases, schedulers, topics, topic_queues, groups IN ACCESS EXCLUSIVE MODE")

    def end() -> None:
        holder.rollback()
        holder.close()

    return end


@contextmanager
def _role(server: LocalServer) -> Iterator[str]:
    """The processes' own, which owns nothing; the schema is brought up to date by the superuser before."""
    upgrade(server.url)
    execute(server, f"CREATE ROLE {ROLE} LOGIN", f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
    execute(server, f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}", f"GRANT ALL ON SCHEMA public TO {ROLE}")
    yield make_url(server.url).set(username=ROLE).render_as_string(hide_password=False)


@pytest.mark.proof
@pytest.mark.postgres
@pytest.mark.parametrize("trouble", [stopped, frozen, locked, read_only, without_privileges, without_schema])
def test_a_server_in_trouble_delays_nothing(
    start: Callable[..., Rig], server: LocalServer, trouble: Callable[[LocalServer], Callable[[], None]]
) -> None:
    with _role(server) as url:
        rig = start(schedulers=2, database_url=url)
        attack(rig, lambda: trouble(server))
