"""Both channels of blocking calls: equal answers and errors, by gRPC's own server and by ports of other kinds."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime import InvalidArgument, Producer, Tls, Unavailable, tls
from duetime.client.blocking import BlockingMethod
from duetime.client.connection import GatewayConnection
from duetime.client.errors import DueTimeError, from_status
from duetime.client.wire import COMPILED, VARIABLE
from duetime.tls import PemFiles, Pems
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from tests.blocking import both, compiled_only
from tests.certified import Certified
from tests.sdk.running import run_python
from tests.twins import native

DEADLINE_S = 60.0
DETAILS = [("x-text", "a, b"), ("x-data-bin", b"\0\xff"), ("grpc-status-details-bin", b"\x08\x0a")]


class Server:
    """gRPC's server of the standard library's threads, with methods for all kinds of ends."""

    def __init__(
        self,
        files: PemFiles | None = None,
        *,
        asks: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: int,
    ) -> None:
        """`asks`: clients must have a certificate."""
        self.waiting = threading.Semaphore(0)
        self.proceed = threading.Event()
        self.peers: set[str] = set()
        given = [(f"grpc.{name}", value) for name, value in options.items()]
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0), *given])
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(getattr(self, name))
            for name in ("echo", "fail", "wait", "metadata", "grow")
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("T", handlers)])
        address = f"{host}:{port}"
        if files is None:
            self.port = self._server.add_insecure_port(address)
        else:
            assert files.ca
            assert files.cert
            assert files.key
            pair = [(files.key.read_bytes(), files.cert.read_bytes())]
            trusted = files.ca.read_bytes() if asks else None
            credentials = grpc.ssl_server_credentials(pair, trusted, require_client_auth=asks)
            self.port = self._server.add_secure_port(address, credentials)

    def echo(self, request: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        return request

    def fail(self, request: bytes, context: Any) -> bytes:
        code = next(code for code in grpc.StatusCode if code.value[0] == int(request))
        context.set_trailing_metadata(DETAILS)
        context.abort(code, "50 % of ü\n")
        raise AssertionError

    def wait(self, request: bytes, _: Any) -> bytes:
        self.waiting.release()
        self.proceed.wait(DEADLINE_S)
        return request

    def metadata(self, _: bytes, context: Any) -> bytes:
        return repr([(key, value) for key, value in context.invocation_metadata() if key.startswith("x-")]).encode()

    def grow(self, request: bytes, _: Any) -> bytes:
        return bytes(int(request))

    def __enter__(self) -> "Server":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.proceed.set()
        self._server.stop(0).wait()

    def leave(self) -> threading.Event:
        """Accepts no more calls; those in progress continue."""
        return self._server.stop(DEADLINE_S)


@contextmanager
def connected(
    port: int, client: str, *, trust: Tls | None = None, host: str = "127.0.0.1"
) -> Iterator[Callable[..., Any]]:
    """A function that calls a method of the server."""
    connection = GatewayConnection(f"{host}:{port}", tls=trust)
    channel = connection.make_blocking_channel(connection.pems, is_compiled=client == COMPILED)

    def call(method: str, request: bytes = b"", timeout: float = DEADLINE_S, metadata: Any = None) -> Any:
        return channel.unary_unary(f"/T/{method}")(request, timeout=timeout, metadata=metadata)

    yield call
    channel.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def status_of(call: Callable[[], Any]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


@both
@pytest.mark.parametrize("code", range(1, 17))
def test_a_status_arrives_with_text_and_metadata(server: Server, client: str, code: int) -> None:
    with connected(server.port, client) as call:
        error = status_of(lambda: call("fail", b"%d" % code))
        assert (error.code().value[0], error.details()) == (code, "50 % of ü\n")
        assert [(key, value) for key, value in error.trailing_metadata()] == DETAILS
        assert call("echo", b"and the connection remains") == b"and the connection remains"


@both
def test_an_unknown_method_is_unimplemented(server: Server, client: str) -> None:
    with connected(server.port, client) as call:
        assert status_of(lambda: call("nothing")).code() is grpc.StatusCode.UNIMPLEMENTED


@both
def test_metadata_arrives_unchanged(server: Server, client: str) -> None:
    sent = [("x-text", "a, b"), ("x-text", "again"), ("x-data-bin", b"\0\xff"), ("x-empty-bin", b"")]
    with connected(server.port, client) as call:
        assert call("metadata", metadata=sent) == repr(sent).encode()


@both
@pytest.mark.parametrize("pair", [("X-Upper", "a"), ("x-line", "a\nb"), ("x blank", "a")])
def test_invalid_metadata_sends_nothing(server: Server, client: str, pair: tuple[str, str]) -> None:
    with connected(server.port, client) as call:
        error = status_of(lambda: call("echo", metadata=[pair]))
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "Invalid metadata")
        assert server.peers == set()


@both
def test_a_call_ends_at_its_deadline_and_the_next_one_succeeds(server: Server, client: str) -> None:
    with connected(server.port, client) as call:
        error = status_of(lambda: call("wait", timeout=0.2))
        assert (error.code(), error.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        assert call("echo", b"x") == b"x"


@both
@pytest.mark.parametrize("size", [0, 1, 16_379, 65_535, 65_536, 1 << 20, GRPC_MESSAGE_BYTES_MAX])
def test_messages_of_all_sizes_pass_both_ways(client: str, size: int) -> None:
    limits = dict.fromkeys(("max_receive_message_length", "max_send_message_length"), GRPC_MESSAGE_BYTES_MAX)
    with Server(**limits) as server, connected(server.port, client) as call:
        body = bytes(range(256)) * (size // 256 + 1)
        assert call("echo", body[:size]) == body[:size]
        assert call("echo", b"next") == b"next"


@both
def test_messages_above_the_limits_are_rejected(client: str) -> None:
    limit = GRPC_MESSAGE_BYTES_MAX
    bounds = {"max_send_message_length": -1, "max_receive_message_length": 1000}
    with Server(**bounds) as server, connected(server.port, client) as call:
        errors = [
            status_of(lambda: call("echo", bytes(limit + 1))),
            status_of(lambda: call("grow", b"%d" % (limit + 1))),
            # The server rejects it before it has all of it.
            status_of(lambda: call("echo", bytes(limit))),
        ]
        assert call("echo", b"x") == b"x"
    assert [error.code() for error in errors] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3
    assert f"larger than max ({limit + 1} vs. {limit})" in errors[0].details()
    assert f"larger than max ({limit + 1} vs. {limit})" in errors[1].details()


@both
def test_a_restarted_server_gets_the_next_call(client: str) -> None:
    with Server() as first, connected(first.port, client) as call:
        assert call("echo", b"1") == b"1"
        first.__exit__()
        assert status_of(lambda: call("echo", b"2", 0.5)).code() is grpc.StatusCode.UNAVAILABLE
        with Server(port=first.port):
            until = time.monotonic() + DEADLINE_S
            while time.monotonic() < until:
                try:
                    assert call("echo", b"3") == b"3"
                    return
                except grpc.RpcError:
                    # grpcio pauses between attempts to connect.
                    threading.Event().wait(0.05)
    pytest.fail("the second server was not called")


@both
def test_a_call_in_progress_survives_a_drain(client: str) -> None:
    with Server() as first, connected(first.port, client) as call, ThreadPoolExecutor(1) as threads:
        running = threads.submit(call, "wait", b"x")
        first.waiting.acquire()
        left = first.leave()
        first.proceed.set()
        assert running.result(DEADLINE_S) == b"x"
        left.wait()


@both
def test_a_broken_call_is_unavailable(client: str) -> None:
    with Server() as server, connected(server.port, client) as call, ThreadPoolExecutor(1) as threads:
        running = threads.submit(lambda: status_of(lambda: call("wait", b"x")))
        server.waiting.acquire()
        server._server.stop(0)
        # Both servers' ends: the call was cancelled, or its connection closed.
        assert running.result(DEADLINE_S).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@both
def test_threads_use_one_channel_at_once(server: Server, client: str) -> None:
    with connected(server.port, client) as call, ThreadPoolExecutor(8) as threads:
        bodies = [b"%d" % number for number in range(400)]
        assert list(threads.map(lambda body: call("echo", body), bodies)) == bodies


@compiled_only
def test_calls_one_after_the_other_use_one_connection(server: Server, client: str) -> None:
    with connected(server.port, client) as call:
        for _ in range(20):
            call("echo")
    assert len(server.peers) == 1


@both
def test_a_closed_channel_makes_no_call(server: Server, client: str) -> None:
    with connected(server.port, client) as call:
        call("echo")
    with pytest.raises(ValueError, match="closed"):
        call("echo")


@both
def test_a_daemon_thread_in_a_call_ends_with_the_interpreter(client: str) -> None:
    done = run_python(
        """
        import socket, threading
        from duetime import Producer
        with socket.create_server(("127.0.0.1", 0)) as listener:
            producer = Producer(f"127.0.0.1:{listener.getsockname()[1]}", timeout="60s")
            threading.Thread(target=producer.send, args=("orders", b"x"), daemon=True).start()
            connection, _ = listener.accept()
        """,
        "",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@both
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_hosts_are_names_or_addresses(client: str, host: str) -> None:
    with Server(host=host) as server, connected(server.port, client, host=host) as call:
        assert call("echo", b"x") == b"x"


@contextmanager
def answering(data: bytes | None) -> Iterator[int]:
    """A port that answers each connection with these bytes and closes it; None: it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                connection, _ = listener.accept()
                with connection:
                    if data is None:
                        ended.wait(DEADLINE_S)
                    else:
                        connection.recv(24)
                        connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join(DEADLINE_S)


@both
@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100])
def test_a_port_without_http2_is_unavailable(client: str, data: bytes) -> None:
    with answering(data) as port, connected(port, client) as call:
        assert status_of(lambda: call("echo", b"x", 10)).code() is grpc.StatusCode.UNAVAILABLE


@both
def test_a_port_that_never_answers_ends_at_the_deadline(client: str) -> None:
    with answering(None) as port, connected(port, client) as call:
        code = status_of(lambda: call("echo", b"x", 0.3)).code()
    assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


# --- TLS ------------------------------------------------------------------------------------------------------------


def outcome(client: str, port: int, trust: Tls | None, host: str = "localhost") -> str:
    """The answer, or the text of the SDK's error."""
    with connected(port, client, trust=trust, host=host) as call:
        try:
            return str(call("echo", b"answered", 5).decode())
        except grpc.RpcError as error:
            translated: DueTimeError = from_status(error, "S")  # type: ignore[arg-type]
            return translated.text


@both
def test_certificates_decide_who_connects(client: str, tmp_path: Path) -> None:
    certified = Certified(tmp_path)
    files, own = certified.issue("gateway"), certified.issue("client", names=())
    assert files.ca
    assert own.cert
    elsewhere = certified.issue("gateway", names=("shop.test",), place="elsewhere")
    stranger = Certified(tmp_path / "stranger").issue("client", names=())
    trusting, showing = Tls(files.ca), Tls(files.ca, cert_file=own.cert, key_file=own.key)
    with Server(files) as server, Server(files, asks=True) as asking, Server(elsewhere) as misnamed, Server() as plain:
        found = {
            "trusted": outcome(client, server.port, trusting),
            "trusted address": outcome(client, server.port, trusting, "127.0.0.1"),
            "client's shown": outcome(client, asking.port, showing),
            "another CA": outcome(client, server.port, Tls(stranger.ca)),
            "another host": outcome(client, misnamed.port, trusting),
            "a server without TLS": outcome(client, plain.port, trusting),
            "a client without TLS": outcome(client, server.port, None),
        }
        missing = outcome(client, asking.port, trusting)
    unreachable = "cannot connect to S: "
    assert found == {
        "trusted": "answered",
        "trusted address": "answered",
        "client's shown": "answered",
        "another CA": f"{unreachable}its certificate is not valid for the trusted CA",
        "another host": f"{unreachable}its certificate has another host name",
        "a server without TLS": f"{unreachable}the server does not use TLS",
        "a client without TLS": f"{unreachable}the server closed the connection; it may require TLS \
(DUETIME_TLS_CA_FILE)",
    }
    assert missing.startswith("cannot connect to S")


@both
def test_large_messages_pass_over_tls(client: str, tmp_path: Path) -> None:
    files = Certified(tmp_path).issue("gateway")
    trust = Tls(files.ca)
    with Server(files, max_receive_message_length=-1) as server, connected(server.port, client, trust=trust) as call:
        body = bytes(range(256)) * 8192
        assert call("echo", body) == body


@both
def test_replaced_files_of_trusted_cas_count_from_the_next_call_on(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    files = Certified(tmp_path).issue("gateway")
    other = Certified(tmp_path / "other").issue("gateway")
    trusted = tmp_path / "trusted.crt"

    def trust(ca: Path | None) -> None:
        assert ca
        trusted.write_bytes(ca.read_bytes())

    trust(files.ca)
    with Server(files) as server:
        call = BlockingMethod(GatewayConnection(f"localhost:{server.port}", tls=Tls(trusted)), "/T/echo")
        assert call(b"x", DEADLINE_S) == b"x"
        trust(other.ca)
        with pytest.raises(Unavailable, match="not valid for the trusted CA"):
            call(b"x", DEADLINE_S)
        trust(files.ca)
        assert call(b"x", DEADLINE_S) == b"x"
        call.close()


# --- the switch -----------------------------------------------------------------------------------------------------


@both
def test_an_unknown_host_is_reported(client: str) -> None:
    with Producer("nobody.invalid:9800", timeout="2s") as producer, pytest.raises(Unavailable, match="unknown host"):
        producer.send("orders", b"x")


@pytest.mark.parametrize(
    ("value", "text"), [("rust", "neither grpcio nor compiled"), (COMPILED, "requires the package duetime-wire")]
)
def test_an_unusable_switch_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, value: str, text: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setitem(sys.modules, "duetime_wire", None)
    with pytest.raises(InvalidArgument, match=text):
        Producer("localhost:1")


@compiled_only
def test_without_a_trusted_ca_or_with_a_proxy_grpcio_connects(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = native("duetime_wire")
    plain = GatewayConnection("shop.test:1")
    assert isinstance(plain.make_blocking_channel(None, is_compiled=True)._native, wire.Channel)
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    channels = [
        GatewayConnection("localhost:1", tls=Tls()).make_blocking_channel(None, is_compiled=False),
        plain.make_blocking_channel(None, is_compiled=True),
    ]
    for channel in channels:
        assert isinstance(channel, grpc.Channel)
        channel.close()


@compiled_only
def test_certificates_that_rustls_rejects_are_an_error(client: str, tmp_path: Path) -> None:
    connection = GatewayConnection("localhost:1")
    pems = Certified(tmp_path).issue("client")
    assert pems.ca
    broken = pems.ca.read_bytes().replace(b"M", b"A", 5)
    with pytest.raises(InvalidArgument, match="certificates can't be used"):
        connection.make_blocking_channel(Pems(broken, None, None), is_compiled=True)
