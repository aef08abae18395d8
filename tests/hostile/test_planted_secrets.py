"""Nothing that is secret, and no body, is in a log, a page of metrics or the database after a whole run."""

import base64
import io
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from duetime.cli.app import run as run_command
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.access.callers import METADATA_KEY
from duetime_core.metadata.engine import make_engine, parse_url
from duetime_core.node.settings import DATABASE_URL_VARIABLE, SECRETS_KEY_VARIABLE
from sqlalchemy import inspect, text
from sqlalchemy.engine import make_url

from tests.hostile.careless import CARELESS, CRASH
from tests.hostile.planted import forms, found, plant
from tests.hostile.rig import Rig

PROJECT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
SERVICES = ("store", "retry", "scheduler", "gateway")


class Run:
    """A cluster that authenticates callers, its planted texts, and the output of its commands beside their results."""

    def __init__(self, rig: Rig, planted: dict[str, str], secrets_key: str) -> None:
        self.rig = rig
        self.planted = planted
        self._errors = ""
        self._environment = {DATABASE_URL_VARIABLE: rig.database_url, SECRETS_KEY_VARIABLE: secrets_key}
        self.channel = grpc.insecure_channel(rig.address)
        self.stub = gateway_pb2_grpc.GatewayStub(self.channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.channel.close()

    def command(self, *words: str) -> str:
        """Output of a command; it may fail."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for key, value in self._environment.items():
                patch.setenv(key, value)
            run_command(list(words))
        self._errors += err.getvalue()
        return out.getvalue().strip()

    def user(self, name: str, *words: str) -> str:
        """A user's token."""
        token = self.command("users", "create", name, *words)
        self.planted[f"token of {name}"] = token.rpartition("_")[2]
        return token

    def told(self) -> dict[str, str]:
        """All logs, pages of metrics, tables and errors of commands."""
        told = {node.log.name: node.log.read_text() for node in self.rig.nodes}
        told |= {f"metrics of {node.name}": "\n".join(node.metrics()) for node in self.rig.nodes}
        return told | tables(self.rig.database_url) | {"errors of commands": self._errors}


def tables(url: str) -> dict[str, str]:
    engine = make_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            return {
                f"table {name}": "\n".join(map(repr, connection.execute(text(f'SELECT * FROM "{name}"'))))
                for name in inspect(connection).get_table_names()
            }
    finally:
        engine.dispose()


@contextmanager
def started(root: Path, database_url: str, **settings: object) -> Iterator[Run]:
    planted = {"cluster secret": plant(), "database password": make_url(database_url).password or plant()}
    secrets_key = base64.b64encode(secrets.token_bytes(32)).decode()
    planted["key of secrets"] = secrets_key
    everywhere = {"DUETIME_CLUSTER_SECRET": planted["cluster secret"], "DUETIME_LOG_LEVEL": "DEBUG"}
    gateway = {"auth": "required", "oidc_issuer": "https://127.0.0.1:1", "oidc_audience": "duetime", **settings}
    services = {name: everywhere | (gateway if name == "gateway" else {}) for name in SERVICES}
    modules = {"gateway": "tests.hostile.careless"}
    with Rig(root / "rig", services, database_url=database_url, modules=modules) as rig:
        run = Run(rig, planted, secrets_key)
        try:
            yield run
        finally:
            run.close()


@pytest.fixture(autouse=True)
def modules_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes find them too."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))


@pytest.fixture
def url_with_password(postgres_url: str) -> Iterator[str]:
    """Of a database whose user has a password."""
    url, password, name = make_url(postgres_url), plant(), f"planted_{secrets.token_hex(8)}"
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{password}'")
        yield url.set(username=name, password=password).render_as_string(hide_password=False)
        connection.execute(f"DROP OWNED BY {name} CASCADE")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
        connection.execute(f"DROP ROLE {name}")


def shown(token: str, scheme: str = "Bearer") -> tuple[tuple[str, str], ...]:
    return (("authorization", f"{scheme} {token}"),)


def status_of(call: Any, request: Any, metadata: Any) -> str:
    try:
        call(request, metadata=metadata, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def send(run: Run, token: str, topic: str, body: str, **fields: Any) -> list[int]:
    """The statuses of a message's faults."""
    sent = message_pb2.Message(topic=topic, body=body.encode(), **fields)
    answer = run.stub.Send(gateway_pb2.SendRequest(messages=[sent]), metadata=shown(token), timeout=DEADLINE_S)
    return [one.fault.code for one in answer.results]


def plant_in_messages(run: Run, token: str) -> None:
    planted = run.planted
    for name in ("body", "delayed body", "property", "refused body", "refused property"):
        planted[name] = plant()
    properties = {"color": planted["property"]}
    assert send(run, token, "orders", planted["body"], properties=properties) == [0]
    assert send(run, token, "orders", planted["delayed body"], properties=properties, delay_ms=50) == [0]
    assert send(run, token, "secrets", planted["refused body"], properties=properties) == [7]
    wrong = {"a\1b": planted["refused property"], "DELAY": planted["refused property"]}
    assert send(run, token, "orders", planted["refused body"], properties=wrong) == [3]


def plant_in_handler_errors(run: Run, token: str) -> None:
    """A message that a consumer gives up, with the words of its exception."""
    run.planted["handler's error"] = plant()
    error = consumer_pb2.HandlerError(type="ValueError", message=run.planted["handler's error"])
    asked = consumer_pb2.ReceiveRequest(group="billing", topic="orders", wait_ms=1_000, max_count=1, max_attempts=1)
    give_up = time.monotonic() + DEADLINE_S
    while not (taken := run.stub.Receive(asked, metadata=shown(token), timeout=DEADLINE_S).messages):
        assert time.monotonic() < give_up
    nacks = consumer_pb2.NackRequest(group="billing", nacks=[consumer_pb2.Nack(receipt=taken[0].receipt, error=error)])
    run.stub.Nack(nacks, metadata=shown(token), timeout=DEADLINE_S)


def plant_in_refused_calls(run: Run, token: str) -> None:
    planted, stub = run.planted, run.stub
    others = ("wrong token", "unknown token", "provider's token", "basic credentials", "raw bytes", "wrong secret")
    for name in others:
        planted[name] = plant()
    unknown = base64.b32encode(secrets.token_bytes(32)).decode().rstrip("=").lower()
    planted["unknown token"] = unknown
    signature = planted["provider's token"]
    head, claims = (_jwt_part(one) for one in ({"alg": "RS256", "kid": "1"}, {"sub": signature}))
    shows = [
        (),
        shown(planted["wrong token"]),
        shown(token[:16] + unknown),
        shown("dt_aaaaaaaaaaaa_" + unknown),
        shown(f"{head}.{claims}.{signature}"),
        shown(base64.b64encode(f"shop:{planted['basic credentials']}".encode()).decode(), "Basic"),
    ]
    asked = gateway_pb2.ListTopicsRequest()
    for metadata in shows:
        # The provider does not answer.
        assert status_of(stub.ListTopics, asked, metadata) in ("UNAUTHENTICATED", "UNAVAILABLE")
    other = gateway_pb2.DescribeTopicRequest(name="secrets")
    assert status_of(stub.DescribeTopic, other, shown(token)) == "PERMISSION_DENIED"
    raw = run.planted["raw bytes"].encode()
    call: Any
    for method in ("Send", "Pull", "Nack", "EndTransaction"):
        call = run.channel.unary_unary(f"/duetime.v1.Gateway/{method}")
        assert status_of(call, b"\xff" + raw, shown(token)) in ("INVALID_ARGUMENT", "PERMISSION_DENIED")
    for node in (*run.rig.stores, run.rig.retry, *run.rig.schedulers):
        with grpc.insecure_channel(node.address) as channel:
            for metadata in ((), ((METADATA_KEY, planted["wrong secret"]),)):
                call = channel.unary_unary("/duetime.v1.Store/Put")
                assert status_of(call, raw, metadata) in ("UNAUTHENTICATED", "UNIMPLEMENTED")


def _jwt_part(value: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def plant_in_crashes(run: Run, token: str, admin: str) -> None:
    planted = run.planted
    planted |= {name: plant() for name in ("crashing body", "crashing property", "crashing header")}
    body = CRASH.decode() + planted["crashing body"]
    with pytest.raises(grpc.RpcError):
        send(run, token, "orders", body, properties={"color": planted["crashing property"]})
    request = gateway_pb2.CreateTopicRequest(name="orders")
    metadata = (*shown(admin), ("x-session", planted["crashing header"]))
    assert status_of(run.stub.CreateTopic, request, metadata) == "INTERNAL"


def plant_in_commands(run: Run) -> str:
    """Returns an admin's token. Secrets are also given where none is expected."""
    admin = run.user("ops", "--admin")
    pair = json.loads(run.command("users", "add-key", "ops", "--json"))
    run.planted["secret key"] = pair["secret_key"]
    rotated = run.command("users", "rotate", "ops", "--old-ends", "1h")
    run.planted["rotated token"] = rotated.rpartition("_")[2]
    for words in (
        ("users", "revoke", "ops", "--token", admin),
        ("users", "revoke", rotated),
        ("users", "delete-key", pair["secret_key"]),
        ("grants", "add", rotated, "send", "orders"),
    ):
        run.command(*words)
    return rotated


def end_connections(url: str) -> None:
    """The database ends all running connections."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        others = "pid <> pg_backend_pid() AND usename = current_user"
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def damage(run: Run) -> None:
    """A byte of a body in the log turns over while the store is away."""
    store = run.rig.stores[0]
    store.end()
    body = run.planted["body"].encode()
    for path in sorted(run.rig.directory.glob("store-0/**/commitlog/*")):
        data = path.read_bytes()
        if body in data:
            with path.open("r+b") as file:
                file.seek(data.index(body))
                file.write(b"!")
    store.start()


@pytest.mark.proof
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_no_planted_secret_leaks(tmp_path: Path, url_with_password: str) -> None:
    with started(tmp_path, url_with_password) as run:
        admin = plant_in_commands(run)
        token = run.user("shop")
        for words in (("send", "orders"), ("receive", "orders", "--group", "billing"), ("manage", "orders")):
            run.command("grants", "add", "shop", *words)
        known(run, token, {"Send", "Receive", "CancelMatching"})
        plant_in_messages(run, token)
        plant_in_handler_errors(run, token)
        plant_in_refused_calls(run, token)
        plant_in_crashes(run, token, admin)
        end_connections(url_with_password)
        for node in run.rig.nodes:
            node.restart()
        damage(run)
        pulled = gateway_pb2.PullRequest(topic="orders", queue=0, max_count=100)
        for queue in range(4):
            pulled.queue = queue
            assert status_of(run.stub.Pull, pulled, shown(admin)) in ("OK", "DATA_LOSS", "UNAVAILABLE")
        audited(run)
        told = run.told()
        for node in run.rig.nodes:
            assert node.end() == 0
        told |= {node.log.name: node.log.read_text() for node in run.rig.nodes}
    check_told(told)
    assert len(run.planted) > 20
    assert found(run.planted, told) == []


def known(run: Run, token: str, methods: set[str]) -> None:
    """Waits until the gateway knows the grants."""
    asked, give_up = gateway_pb2.WhoAmIRequest(), time.monotonic() + DEADLINE_S
    while not methods <= set(run.stub.WhoAmI(asked, metadata=shown(token), timeout=DEADLINE_S).methods):
        assert time.monotonic() < give_up


def audited(run: Run) -> None:
    """Returns once the audit log has the last refusal."""
    give_up = time.monotonic() + DEADLINE_S
    while "DescribeTopic" not in tables(run.rig.database_url)["table audit_events"]:
        assert time.monotonic() < give_up


def check_told(told: Mapping[str, str]) -> None:
    """The run was complete: every log line that could leak is there."""
    gateway = told["gateway-0.log"]
    awaited = (
        "defect in",
        "TOKEN_INVALID",
        "RIGHT_MISSING",
        "KeyError",
        "UnicodeDecodeError",
        "cannot read identity provider keys",
    )
    assert [words for words in awaited if words not in gateway] == []
    assert "CLUSTER_SECRET_REFUSED" in told["store-0.log"]
    assert "command/users rotate" in told["table audit_events"]
    assert "scrypt$" in told["table user_tokens"]


@pytest.mark.proof
@pytest.mark.parametrize("careless", ["line", "encoded", "audit"])
def test_search_finds_secrets_leaked_by_a_careless_gateway(
    careless: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CARELESS, careless)
    with started(tmp_path, f"sqlite:///{tmp_path / 'metadata.db'}") as run:
        admin = run.user("ops", "--admin")
        plant_in_crashes(run, admin, admin)
        node = run.rig.gateways[0]
        assert node.end() == 0
        told = {"log": node.log.read_text()} | tables(run.rig.database_url)
    place = "table audit_events" if careless == "audit" else "log"
    assert f"crashing header in {place}" in found(run.planted, told)


def test_text_is_found_in_any_encoding_wherever_it_begins() -> None:
    text = plant()
    assert len(set(forms(text))) == 6
    for ahead in ("", "a", "ab", "abc"):
        whole = f"{ahead}{text}{ahead}".encode()
        for told in (whole.decode(), whole.hex(), base64.b64encode(whole).decode()):
            assert found({"it": text}, {"log": told}) == ["it in log"]
            assert found({"it": plant()}, {"log": told}) == []
