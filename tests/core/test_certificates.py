"""Certificates: admission by them, and changes while processes run."""

import asyncio
import http.client
import json
import os
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from duetime import tls
from duetime.cli.authority import Authority, Pair
from duetime.tls import PemFiles, PemFollower
from duetime.v1 import store_pb2, store_pb2_grpc, subscriptions_pb2
from duetime_core.access.certificates import Certificates
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.errors import StartupError
from duetime_core.health import health_of
from duetime_core.node.settings import credentials_of_commands
from duetime_core.rpc.channels import make_blocking_channel, make_channel
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

from tests import fronts
from tests.certified import DAY, Certified, credentials_of
from tests.core.sample_node import SampleSettings
from tests.core.test_node import Process

pytestmark = fronts.both

DEADLINE_S = 60.0


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    return Certified(tmp_path)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at each time."""
    monkeypatch.setattr(tls, "LOOK_S", 0.0)


class _Store(store_pb2_grpc.StoreServicer):
    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def Describe(self, request: Any, context: Any) -> store_pb2.DescribeResponse:
        return store_pb2.DescribeResponse()

    async def Subscribe(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield subscriptions_pb2.SubscribeResponse()


@asynccontextmanager
async def serving(credentials: ClusterCredentials, *, asked: bool = True, **ports: int) -> AsyncIterator[Server]:
    server = Server([], 100, credentials=credentials, asked=asked)
    store_pb2_grpc.add_StoreServicer_to_server(_Store(), server.grpc)  # type: ignore[no-untyped-call]
    await server.start("127.0.0.1", 0, **ports, front=fronts.current())
    try:
        yield server
    finally:
        await server.stop(0)


async def described(channel: grpc.aio.Channel) -> str:
    """OK, or the status of the failure."""
    try:
        stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
        await stub.Describe(store_pb2.DescribeRequest(), timeout=DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def reached(port: int, credentials: ClusterCredentials, host: str = "127.0.0.1") -> str:
    async with make_channel(f"{host}:{port}", credentials) as channel:
        return await described(channel)


# --- admission --------------------------------------------------------------------------------------------------------

Made = Callable[[Certified], ClusterCredentials]
CALLERS: dict[str, tuple[Made, str]] = {
    "good": (lambda c: credentials_of(c.issue("gateway", names=())), "OK"),
    "another CA": (lambda c: credentials_of(c.issue("gateway", by=Authority.make())), "UNAVAILABLE"),
    "expired": (lambda c: credentials_of(c.issue("gateway", ends_in=-timedelta(seconds=1))), "UNAVAILABLE"),
    "not yet valid": (lambda c: credentials_of(c.issue("gateway", starts_in=DAY, ends_in=2 * DAY)), "UNAVAILABLE"),
    "none": (lambda c: ClusterCredentials(), "UNAVAILABLE"),
    "another role": (lambda c: credentials_of(c.issue("retry")), "PERMISSION_DENIED"),
    "no role": (lambda c: credentials_of(c.issue("", uri="spiffe://other/gateway")), "UNAUTHENTICATED"),
}


@pytest.mark.parametrize("who", CALLERS)
async def test_only_valid_certificates_of_the_right_role_get_in(certified: Certified, who: str) -> None:
    make, outcome = CALLERS[who]
    async with serving(credentials_of(certified.issue("store"))) as server:
        assert await reached(server.port, make(certified)) == outcome


@pytest.mark.parametrize(
    ("server", "host", "outcome"),
    [
        ({}, "127.0.0.1", "OK"),
        ({}, "localhost", "OK"),
        ({"names": ("store-0",)}, "127.0.0.1", "UNAVAILABLE"),
        ({"names": ("127.0.0.1",)}, "localhost", "UNAVAILABLE"),
        ({"ends_in": -timedelta(seconds=1)}, "127.0.0.1", "UNAVAILABLE"),
        ({"starts_in": DAY, "ends_in": 2 * DAY}, "127.0.0.1", "UNAVAILABLE"),
        ({"by": Authority.make()}, "127.0.0.1", "UNAVAILABLE"),
    ],
    ids=["good", "by name", "wrong name", "wrong address", "expired", "not yet valid", "another CA"],
)
async def test_only_servers_with_valid_certificates_of_their_name_are_called(
    certified: Certified, server: dict[str, Any], host: str, outcome: str
) -> None:
    async with serving(credentials_of(certified.issue("store", **server))) as running:
        assert await reached(running.port, credentials_of(certified.issue("gateway")), host) == outcome


async def test_a_client_with_a_certificate_calls_no_plain_server(certified: Certified) -> None:
    async with serving(ClusterCredentials()) as server:
        assert await reached(server.port, credentials_of(certified.issue("gateway"))) == "UNAVAILABLE"
        assert await reached(server.port, ClusterCredentials()) == "OK"


def handshake(port: int, newest: ssl.TLSVersion) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Older versions than 1.2 take signatures that OpenSSL itself refuses by default.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, newest
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as plain, context.wrap_socket(plain) as wrapped:
        return str(wrapped.version())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_tls_below_1_2_is_refused(certified: Certified) -> None:
    async with serving(credentials_of(certified.issue("store")), asked=False) as server:
        assert await asyncio.to_thread(handshake, server.port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(handshake, server.port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(handshake, server.port, ssl.TLSVersion.TLSv1_1)


async def test_the_certified_port_asks_where_the_public_one_does_not(certified: Certified) -> None:
    credentials = credentials_of(certified.issue("gateway"))
    pems = grpc.ssl_channel_credentials(certified.authority.pair.cert)
    async with serving(credentials, asked=False, certified_port=0) as server:
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", pems) as channel:
            # TLS admits it; then the call is refused.
            assert await described(channel) == "UNAUTHENTICATED"
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.certified_port}", pems) as channel:
            assert await described(channel) == "UNAVAILABLE"
        assert await reached(server.certified_port, credentials_of(certified.issue("operator"))) == "OK"


async def test_the_probe_port_serves_health_alone(certified: Certified) -> None:
    async with serving(credentials_of(certified.issue("store")), probe_port=0) as server:
        address = f"127.0.0.1:{server.probe_port}"
        assert await asyncio.to_thread(health_of, address) == "SERVING"
        assert await asyncio.to_thread(health_of, address, "liveness") == "SERVING"
        assert await asyncio.to_thread(health_of, f"127.0.0.1:{server.port}") == "UNAVAILABLE"
        async with grpc.aio.insecure_channel(address) as channel:
            assert await described(channel) == "UNIMPLEMENTED"
            info = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                # Without a request: gRPC forgets the server's status if that comes while one is being written.
                await info(timeout=DEADLINE_S).read()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await server.report(serving=False)
        assert await asyncio.to_thread(health_of, address) == "NOT_SERVING"


def test_blocking_channels_show_the_certificate_too(certified: Certified) -> None:
    async def serve(work: Callable[[int], str]) -> str:
        async with serving(credentials_of(certified.issue("store"))) as server:
            return await asyncio.to_thread(work, server.port)

    def ask(port: int) -> str:
        credentials = credentials_of(certified.issue("spark", names=()))
        with make_blocking_channel(f"127.0.0.1:{port}", credentials=credentials) as channel:
            try:
                channel.unary_unary("/duetime.v1.Store/Describe")(b"", timeout=DEADLINE_S)
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]
        return "OK"

    assert asyncio.run(serve(ask)) == "PERMISSION_DENIED"


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_that_do_not_fit_stop_a_start(certified: Certified) -> None:
    good = certified.issue("store")
    other = Authority.make().pair
    for file, data in ((good.key, other.key), (good.cert, b"no certificate"), (good.ca, b"")):
        assert file is not None
        kept = file.read_bytes()
        file.write_bytes(data)
        with pytest.raises(StartupError, match=r"certificate .*tls\.crt, key .*tls\.key and CA .*ca\.crt: "):
            Certificates(good)
        file.write_bytes(kept)
    with pytest.raises(StartupError, match="No such file"):
        Certificates(good._replace(key=certified.root / "nowhere"))
    Certificates(good)


@pytest.mark.parametrize("missing", ["CERT", "KEY", "CA"])
def test_a_setting_that_is_missing_is_named(
    certified: Certified, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    files = certified.issue("store")
    for name, path in {"CA": files.ca, "CERT": files.cert, "KEY": files.key}.items():
        monkeypatch.setenv(f"DUETIME_TLS_{name}_FILE", "" if name == missing else str(path))
    for read in (lambda: SampleSettings.read([]), credentials_of_commands):
        with pytest.raises(StartupError, match=f"missing: DUETIME_TLS_{missing}_FILE"):
            read()


def test_commands_may_know_the_ca_alone(certified: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_TLS_CA_FILE", str(certified.issue("store").ca))
    certificates = credentials_of_commands().certificates
    assert certificates is not None
    assert certificates.now().cert is None
    with pytest.raises(StartupError, match="missing: DUETIME_TLS_CERT_FILE, DUETIME_TLS_KEY_FILE"):
        SampleSettings.read([])


def test_settings_of_all_processes_are_read(certified: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certified.issue("store")
    for name, path in {"CA": files.ca, "CERT": files.cert, "KEY": files.key}.items():
        monkeypatch.setenv(f"DUETIME_TLS_{name}_FILE", str(path))
    settings = SampleSettings.read([])
    assert settings.files == files
    assert settings.tls
    assert settings.authenticated
    assert settings.credentials().certificates is not None
    monkeypatch.setenv("DUETIME_TLS_SPIFE_PREFIX", "spiffe://x/")
    with pytest.raises(StartupError, match="DUETIME_TLS_SPIFE_PREFIX is not a setting"):
        SampleSettings.read([])


def test_metrics_by_tls_take_a_certificate() -> None:
    with pytest.raises(StartupError, match="metrics_tls requires a certificate"):
        SampleSettings.read(["--metrics-tls", "on"])
    assert SampleSettings.read(["--metrics-tls", "0"]).metrics_tls == "off"


@pytest.mark.usefixtures("looks_often")
def test_unfit_certificate_changes_nothing_and_is_reported_once(certified: Certified) -> None:
    registry = CollectorRegistry()
    files = certified.issue("store")
    certificates = Certificates(files, registry)
    before = certificates.now()
    assert files.cert is not None
    files.cert.write_bytes(Authority.make().pair.cert)
    assert [certificates.now() for _ in range(3)] == [before] * 3
    assert registry.get_sample_value("duetime_tls_reloads_total", {"outcome": "refused"}) == 1
    files.cert.unlink()
    assert certificates.now() is before
    certified.issue("store", ends_in=5 * DAY)
    after = certificates.now()
    assert after is not before
    assert certificates.now() is after
    assert registry.get_sample_value("duetime_tls_reloads_total", {"outcome": "taken"}) == 1


@pytest.mark.usefixtures("looks_often")
def test_a_directory_that_is_swapped_is_seen(certified: Certified) -> None:
    """Kubernetes replaces a mounted Secret by a link."""
    certified.issue("store", place="first")
    link = certified.root / "data"
    link.symlink_to("first")
    followed = PemFollower(PemFiles(link / "ca.crt", link / "tls.crt", link / "tls.key"))
    before = followed.now()
    certified.issue("store", place="second")
    other = certified.root / "next"
    other.symlink_to("second")
    other.replace(link)
    assert followed.now().cert not in (before.cert, None)


@pytest.mark.usefixtures("looks_often")
def test_the_end_of_certificates_is_reported(certified: Certified) -> None:
    registry = CollectorRegistry()
    files = certified.issue("store", ends_in=DAY)
    _ = Certificates(files, registry)

    def end(of: str) -> float:
        found = registry.get_sample_value("duetime_tls_certificate_expires_timestamp_seconds", {"of": of})
        assert found is not None
        return found

    first = end("own")
    assert end("ca") > first
    certified.issue("store", ends_in=3 * DAY)
    assert end("own") == pytest.approx(first + 2 * 86_400, abs=60)


def test_files_are_checked_once_a_second(certified: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 1_000.0)
    followed = PemFollower(certified.issue("store"))
    before = followed.now()
    certified.issue("store")
    assert followed.now() is before


# --- change -----------------------------------------------------------------------------------------------------------


def serial(port: int) -> str:
    """The certificate that a server shows."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE_S)


@pytest.mark.usefixtures("looks_often")
async def test_ca_and_certificates_change_under_load_and_no_call_fails(certified: Certified) -> None:
    """Old CA, then both, then certificates of the new one, then the new one alone."""
    store, gateway = certified.issue("store"), certified.issue("gateway")
    async with (
        serving(credentials_of(store)) as server,
        make_channel(f"127.0.0.1:{server.port}", credentials_of(gateway)) as channel,
    ):
        stop, outcomes, beats = asyncio.Event(), list[str](), [0]
        stream = store_pb2_grpc.StoreStub(channel).Subscribe()  # type: ignore[no-untyped-call]

        async def call() -> None:
            while not stop.is_set():
                outcomes.append(await described(channel))

        async def beat() -> None:
            while not stop.is_set():
                await stream.write(subscriptions_pb2.SubscribeRequest())
                assert await stream.read() is not grpc.aio.EOF
                beats[0] += 1

        async def more(count: int = 20) -> None:
            """Waits for `count` more calls of both kinds."""
            wanted = len(outcomes) + count, beats[0] + count
            async with asyncio.timeout(DEADLINE_S):
                while len(outcomes) < wanted[0] or beats[0] < wanted[1]:
                    await asyncio.to_thread(lambda: None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(call())
            tasks.create_task(beat())
            await more()
            first = await asyncio.to_thread(serial, server.port)
            new = Authority.make()
            both = certified.authority.pair.cert + new.pair.cert
            for role in ("store", "gateway"):
                certified.issue(role, trusts=both)
            await more()
            for role in ("gateway", "store"):
                certified.issue(role, by=new, trusts=both)
            await more()
            for role in ("gateway", "store"):
                certified.issue(role, by=new, trusts=new.pair.cert)
            await more()
            assert await asyncio.to_thread(serial, server.port) != first
            # Holders of the old certificate are refused.
            old = ClusterCredentials(certificates=Certificates(certified.issue("gateway", place="old")))
            assert await reached(server.port, old) == "UNAVAILABLE"
            await more()
            stop.set()
    assert set(outcomes) == {"OK"}


@pytest.mark.usefixtures("looks_often")
async def test_a_channel_recovers_with_the_next_certificate(certified: Certified) -> None:
    credentials = credentials_of(certified.issue("gateway", ends_in=-timedelta(seconds=1)))
    async with (
        serving(credentials_of(certified.issue("store"))) as server,
        make_channel(f"127.0.0.1:{server.port}", credentials) as channel,
    ):
        assert await described(channel) == "UNAVAILABLE"
        certified.issue("gateway")
        assert await described(channel) == "OK"


@pytest.mark.usefixtures("looks_often")
async def test_a_stream_outlives_its_channel_s_replacement_and_ends_with_close(certified: Certified) -> None:
    credentials = credentials_of(certified.issue("gateway"))

    async with serving(credentials_of(certified.issue("store"))) as server:
        channel = make_channel(f"127.0.0.1:{server.port}", credentials)
        stream = store_pb2_grpc.StoreStub(channel).Subscribe()  # type: ignore[no-untyped-call]
        await stream.write(subscriptions_pb2.SubscribeRequest())
        assert await stream.read() is not grpc.aio.EOF
        certified.issue("gateway")
        assert await described(channel) == "OK"
        await stream.write(subscriptions_pb2.SubscribeRequest())
        assert await stream.read() is not grpc.aio.EOF
        await channel.close()
        assert await stream.code() is grpc.StatusCode.CANCELLED


# --- metrics ----------------------------------------------------------------------------------------------------------


def page(port: int, context: ssl.SSLContext | None) -> str:
    scheme = "http" if context is None else "https"
    url = f"{scheme}://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=DEADLINE_S, context=context) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("mode", ["on", "certified"])
def test_metrics_come_by_tls_and_follow_the_certificate(certified: Certified, mode: str) -> None:
    files = certified.issue("store")
    flags = {"--tls-cert-file": files.cert, "--tls-key-file": files.key, "--tls-ca-file": files.ca}
    process = Process(*(str(part) for pair in flags.items() for part in pair), "--metrics-tls", mode)
    port = process.ready()["metrics_port"]
    known = ssl.create_default_context(cafile=str(files.ca))
    shown = ssl.create_default_context(cafile=str(files.ca))
    own = certified.issue("prometheus", names=())
    shown.load_cert_chain(str(own.cert), str(own.key))
    try:
        assert "duetime_build_info" in page(port, shown)
        for context in (None, ssl.create_default_context()):
            with pytest.raises((OSError, http.client.HTTPException)):
                page(port, context)
        if mode == "on":
            assert "duetime_build_info" in page(port, known)
        else:
            with pytest.raises((OSError, http.client.HTTPException)):
                page(port, known)
        before = None if mode == "certified" else serial(port)
        certified.issue("store", ends_in=2 * DAY)
        while before is not None and serial(port) == before:
            pass  # until it looks, which is within a second
    finally:
        process.popen.terminate()
        code, _, told = process.end()
    assert code == 0
    assert "Traceback" not in told


def test_process_with_a_certificate_listens_beyond_loopback(certified: Certified) -> None:
    files = certified.issue("store")
    flags = {"--tls-cert-file": files.cert, "--tls-key-file": files.key, "--tls-ca-file": files.ca}
    given = [str(part) for pair in flags.items() for part in pair]
    process = Process("--host", "0.0.0.0", *given, "--metrics-host", "127.0.0.1", "--log-format", "json")
    process.ready()
    process.popen.terminate()
    code, _, told = process.end()
    assert code == 0
    assert [line for line in map(json.loads, told.splitlines()) if line["level"] == "warning"] == []
    code, _, told = Process("--host", "0.0.0.0", *given).end()
    assert code == 1
    assert "METRICS_TLS" in told


def test_a_key_that_asks_for_a_password_is_refused_at_once(certified: Certified) -> None:
    files = certified.issue("store")
    assert files.key is not None
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    hidden = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, hidden))
    with pytest.raises(StartupError):
        Certificates(files)


def test_keys_are_for_their_owner_alone(certified: Certified) -> None:
    certified.put("x", Pair(b"1", b"2"), b"3")
    assert [os.stat(path).st_mode & 0o077 for path in certified.root.rglob("*")] == [0] * 4
