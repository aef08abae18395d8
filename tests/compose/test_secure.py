"""deploy/compose/secure.yml on a real engine: only permitted callers get in, and renewed certificates are taken."""

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from duetime import Message, Producer, Puller, Unauthenticated, Unavailable

from tests.compose.stack import PROJECT, SERVICES, Secure
from tests.compose.webhooks import receiving
from tests.deploy.composing import SECURE, mounts_of, services_of
from tests.deploy.shown import serial_of

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

TIMEOUT_S = 30.0
RENEWED_WITHIN_S = 60.0
# An empty request that is let in.
ADMITTED = "OK INVALID_ARGUMENT"
# The status of a call to a store's port, made in a container with the certificate that is there, or with none.
CALL = """
import sys, grpc
ca, key, cert = (open("/etc/duetime/tls/" + name, "rb").read() for name in ("ca.crt", "tls.key", "tls.crt"))
shown = (key, cert) if sys.argv[2] == "shown" else (None, None)
with grpc.secure_channel("store-0:9801", grpc.ssl_channel_credentials(ca, *shown)) as channel:
    try:
        channel.unary_unary("/duetime.v1.Store/" + sys.argv[1])(b"", timeout=10)
        print("OK")
    except grpc.RpcError as error:
        print(error.code().name)
"""
# The serial number of the certificate that a port of the network shows.
SERIAL = """
import ssl, socket, sys
from cryptography import x509
context = ssl.create_default_context(cafile="/etc/duetime/tls/ca.crt")
context.load_cert_chain("/etc/duetime/tls/tls.crt", "/etc/duetime/tls/tls.key")
context.set_alpn_protocols(["h2"])
for address in sys.argv[1:]:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 10) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        print(address, x509.load_der_x509_certificate(tls.getpeercert(binary_form=True)).serial_number)
"""
PORTS = ("gateway:9800", "gateway:9802", "store-0:9801", "store-1:9801", "scheduler:9803", "retry:9804")


@pytest.fixture(autouse=True)
def trusting(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process know the CA, and show no token by themselves."""
    monkeypatch.setenv("DUETIME_TLS_CA_FILE", str(secure.ca))
    monkeypatch.delenv("DUETIME_TOKEN", raising=False)
    monkeypatch.delenv("DUETIME_TOKEN_FILE", raising=False)


def test_compose_puts_the_files_together_as_the_tests_of_tests_deploy_do(secure: Secure) -> None:
    told = json.loads(secure.stack.compose("--profile", "*", "config", "--format", "json"))["services"]
    expected = services_of(SECURE)
    assert told.keys() == expected.keys()
    for name, service in told.items():
        mounts = {one["target"]: one["source"].removeprefix(str(PROJECT)) for one in service.get("volumes", [])}
        assert mounts == {target: source.removeprefix(".") for target, source in mounts_of(expected[name]).items()}
        assert (service.get("environment") or {}).keys() == expected[name].get("environment", {}).keys()
        assert (service.get("depends_on") or {}).keys() == set(expected[name].get("depends_on", ()))


def test_all_is_healthy_and_nothing_is_published_or_mounted_that_need_not_be(secure: Secure) -> None:
    assert secure.stack.running() == SERVICES
    expected = services_of(SECURE)
    for container in secure.stack.containers():
        name, told = container["Service"], secure.stack.inspect(container["ID"])
        volumes = {
            mount["Destination"]: mount["Name"].removeprefix(f"{secure.stack.name}_")
            for mount in told["Mounts"]
            if mount["Type"] == "volume"
        }
        assert volumes == mounts_of(expected[name])
        if name != "postgres":
            assert told["Config"]["User"] == "10001:10001"
            assert told["HostConfig"]["ReadonlyRootfs"]
        assert not {"DUETIME_INSECURE=1"} & set(told["Config"]["Env"])
        published = {port["URL"] for port in container["Publishers"] or [] if port["PublishedPort"]}
        assert published == ({"127.0.0.1"} if name in ("gateway", "console") else set())


def test_a_call_without_a_token_or_with_a_wrong_one_is_refused(secure: Secure) -> None:
    for token in (None, secure.token[:-1] + ("A" if secure.token[-1] != "A" else "B")):
        with Producer(secure.stack.address, token=token) as producer, pytest.raises(Unauthenticated):
            producer.send("refused", b"x")


def test_a_call_in_plain_is_refused(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUETIME_TLS_CA_FILE")
    with Producer(secure.stack.address, token=secure.token, timeout="3s") as producer, pytest.raises(Unavailable):
        producer.send("refused", b"x")


def test_a_delayed_message_reaches_a_caller_with_a_token(secure: Secure) -> None:
    sent = send(secure, "delayed", delay="1s", count=20)
    assert receive(secure, "delayed", len(sent)) == Counter(sent)


def test_client_in_a_container_shows_its_token(secure: Secure) -> None:
    words = ("run", "--rm", "--no-deps", "-T", "demo", "demo", "--json")
    told = secure.stack.compose(*words, variables={"DUETIME_TOKEN": secure.token})
    lines = [json.loads(line) for line in told.splitlines()]
    assert Counter(line["demo"] for line in lines) == {"sent": 6, "arrived": 6}


@pytest.mark.parametrize(
    ("service", "method", "shown", "status"),
    [
        # Only gateways and retry services put, and only schedulers restore.
        ("gateway", "Put", "shown", ADMITTED),
        ("scheduler", "Put", "shown", "PERMISSION_DENIED"),
        ("gateway", "Restore", "shown", "PERMISSION_DENIED"),
        ("retry", "Restore", "shown", "PERMISSION_DENIED"),
        ("gateway", "Put", "nothing", "UNAVAILABLE"),
    ],
)
def test_an_inner_port_takes_calls_by_the_certificate_that_is_shown(
    secure: Secure, service: str, method: str, shown: str, status: str
) -> None:
    assert inside(secure, service, CALL, method, shown).strip() in status.split()


def test_worker_posts_messages_as_a_user_with_rights_on_their_topic(secure: Secure) -> None:
    stack = secure.stack

    def client(*words: str) -> str:
        return stack.compose(
            *("run", "--rm", "--no-deps", "-T", "demo", *words), variables={"DUETIME_TOKEN": secure.token}
        )

    client("topics", "create", "hooks")
    users = ("exec", "-T", "gateway", "duetime")
    token = stack.compose(*users, "users", "create", "hooks").strip()
    stack.compose(*users, "grants", "add", "hooks", "receive", "hooks", "--group", "hook")
    with receiving(stack) as receiver:
        client("webhooks", "create", "hook", "--topic", "hooks", "--group", "hook", "--url", receiver.url)
        started = {"COMPOSE_PROFILES": "webhooks", "DUETIME_WEBHOOKS_TOKEN": token}
        try:
            stack.compose("up", "--detach", "--wait", "--no-deps", "webhooks", variables=started)
            sent = send(secure, "hooks", delay="1s", count=20)
            assert receiver.until(set(sent), TIMEOUT_S).total() == len(sent)
        finally:
            stack.compose("rm", "--stop", "--force", "webhooks", variables=started)


def test_spark_reads_the_gateway_by_its_certificate(secure: Secure) -> None:
    send(secure, "later", delay="1h", count=20)
    words = ("run", "--rm", "--no-deps", "-T", "backlog", "backlog", "grpc://gateway:9802", "--json")
    told = secure.stack.compose(*words, timeout_s=240)
    assert '"later"' in told


def test_renewed_certificates_are_taken_without_a_restart_and_without_a_failed_call(secure: Secure) -> None:
    before, started = serials(secure), starts(secure)
    sent: list[str] = []

    def go_on() -> None:
        sent.extend(send(secure, "renewed", delay="1s", count=5))

    go_on()
    secure.stack.compose("run", "--rm", "--no-deps", "-T", "certs")
    until(lambda: not set(serials(secure).items()) & set(before.items()), go_on)
    go_on()
    assert starts(secure) == started
    assert serial_of(secure.stack.address, secure.ca) == serials(secure)["gateway:9800"]
    assert receive(secure, "renewed", len(sent)) == Counter(sent)


def test_messages_users_and_the_authority_outlive_a_restart(secure: Secure) -> None:
    sent = send(secure, "kept", delay="5s", count=20)
    secure.stack.compose("down", timeout_s=180)
    secure.stack.up()
    assert secure.stack.running() == SERVICES
    assert receive(secure, "kept", len(sent)) == Counter(sent)


def send(secure: Secure, topic: str, *, delay: str, count: int) -> list[str]:
    """The ids of messages that were stored."""
    messages = [Message(topic, b"x", delay=delay) for _ in range(count)]
    with Producer(secure.stack.address, token=secure.token, timeout=timedelta(seconds=TIMEOUT_S)) as producer:
        receipts = producer.send_many(messages)
    return [receipt.message_id for receipt in receipts]  # type: ignore[union-attr]


def receive(secure: Secure, topic: str, count: int) -> Counter[str]:
    """The ids of all messages of a topic, none of them early."""
    found: Counter[str] = Counter()
    end = time.monotonic() + TIMEOUT_S
    with Puller(
        secure.stack.address, topic, start="earliest", token=secure.token, timeout=timedelta(seconds=TIMEOUT_S)
    ) as puller:
        while found.total() < count and time.monotonic() < end:
            for message in puller.poll(max=1_000, wait="500ms"):
                assert message.late_ms is not None
                assert message.late_ms >= 0
                found[message.id] += 1
    return found


def inside(secure: Secure, service: str, code: str, *words: str) -> str:
    """Output of a program in a container of a service."""
    return secure.stack.compose("exec", "-T", service, "python", "-P", "-c", code, *words)


def serials(secure: Secure) -> dict[str, str]:
    """Of the certificates that are shown inside, by port."""
    return dict(line.split() for line in inside(secure, "gateway", SERIAL, *PORTS).splitlines())


def starts(secure: Secure) -> dict[str, str]:
    """When each serving container was started, by its id."""
    containers = [one for one in secure.stack.containers() if one["State"] == "running"]
    return {one["ID"]: secure.stack.inspect(one["ID"])["State"]["StartedAt"] for one in containers}


def until(holds: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
    end = time.monotonic() + RENEWED_WITHIN_S
    while not holds():
        assert time.monotonic() < end, f"not within {RENEWED_WITHIN_S:g} s"
        meanwhile()
