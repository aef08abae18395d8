"""`duetime certs`, and a cluster by its certificates."""

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime import DueTimeError, Message, Producer, Puller, Tls
from duetime.cli.app import run
from duetime.cli.authority import Authority, read
from duetime.cli.certs import CALLERS, SERVERS
from duetime.tls import PemFiles
from duetime_core.access.certificates import Certificates

from tests.cli.cluster import Up, run_duetime

ROLES = (*SERVERS, *CALLERS)
both_ways = pytest.mark.parametrize(
    "options", [pytest.param([], id="one"), pytest.param(["--processes"], id="four", marks=pytest.mark.proof)]
)


def init(directory: Path, *options: str) -> int:
    return run(["certs", "init", str(directory), *options])


def files_of(directory: Path, role: str) -> PemFiles:
    return PemFiles(directory / role / "ca.crt", directory / role / "tls.crt", directory / role / "tls.key")


def test_a_ca_and_a_certificate_for_each_role_are_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "deep" / "certs"
    assert init(directory, "--dns", "db.example.com", "--name", "10.0.0.7", "--days", "30", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["roles"] == list(ROLES)
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == {
        "ca.crt",
        "ca.key",
        *(f"{role}/{name}" for role in ROLES for name in ("tls.crt", "tls.key", "ca.crt")),
    }
    assert [path for path in directory.rglob("*") if path.stat().st_mode & 0o077] == []
    for role in ROLES:
        Certificates(files_of(directory, role))
        (one,) = read((directory / role / "tls.crt").read_bytes())
        assert (one.role, one.is_ca) == (role, False)
        assert one.names[0] == f"spiffe://duetime/{role}"
        assert timedelta(days=29) < one.ends_at - datetime.now(UTC) < timedelta(days=30)
        wanted = {"localhost", "127.0.0.1", "::1", "db.example.com", "10.0.0.7", f"duetime-{role}"}
        assert wanted & set(one.names) == (wanted if role in SERVERS else set())


def test_another_run_renews_and_keeps_the_ca(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert init(tmp_path, "--role", "gateway", "--role", "store") == 0
    changed = {str(path.relative_to(tmp_path)) for path, data in before.items() if path.read_bytes() != data}
    assert changed == {f"{role}/{name}" for role in ("gateway", "store") for name in ("tls.crt", "tls.key")}
    assert init(tmp_path, "--force") == 0
    assert all(path.read_bytes() != data for path, data in before.items())
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".part")] == []


def test_init_overwrites_no_incomplete_ca(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path) == 0
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.key").unlink()
    assert init(tmp_path) == 1
    assert "without the other half of the CA" in capsys.readouterr().err
    (tmp_path / "ca.key").write_bytes(Authority.make().pair.key)
    assert init(tmp_path) == 1
    assert "has no usable CA" in capsys.readouterr().err
    (tmp_path / "ca.key").write_bytes(key)
    assert init(tmp_path) == 0
    assert init(tmp_path, "--role", "king") == 2


def test_a_certificate_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path) == 0
    capsys.readouterr()
    assert run(["certs", "show", str(tmp_path / "store" / "tls.crt"), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["subject"], told["role"], told["issuer"]) == ("CN=store", "store", "CN=DueTime CA")
    assert run(["certs", "show", str(tmp_path / "store" / "tls.crt")]) == 0
    assert "spiffe://duetime/store" in capsys.readouterr().out
    assert run(["certs", "show", str(tmp_path / "ca.crt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_ca"]
    assert run(["certs", "show", str(tmp_path / "ca.key")]) == 1
    assert run(["certs", "show", str(tmp_path / "nowhere")]) == 1


@both_ways
def test_up_by_certificates_takes_tls_alone(tmp_path: Path, options: list[str]) -> None:
    certs = tmp_path / "certs"
    assert init(certs) == 0
    with Up(tmp_path / "data", "--certs", str(certs), *options) as up:
        assert up.ready["tls_ca"] == str(certs / "ca.crt")
        trust = Tls(certs / "ca.crt")
        with Producer(up.server, tls=trust) as producer:
            producer.send_message(Message("orders", b"later", delay="1s"))
        with Puller(up.server, "orders", tls=trust, start="earliest") as puller:
            assert next(iter(puller)).body == b"later"
        with pytest.raises(DueTimeError), Producer(up.server, timeout="1s") as producer:
            producer.send("orders", b"plain")
        sent = run_duetime("--tls-ca", certs / "ca.crt", "send", "orders", "by option", "--server", up.server)
        assert sent.returncode == 0, sent.stderr
        environment = {"DUETIME_TLS_CA_FILE": str(certs / "ca.crt")}
        assert run_duetime("topics", "--server", up.server, environment=environment).returncode == 0
        assert run_duetime("topics", "--server", up.server).returncode == 1
        if options:
            store = up.ready["processes"]["store"]["address"]
            with grpc.insecure_channel(store) as channel, pytest.raises(grpc.RpcError):
                channel.unary_unary("/duetime.v1.Store/Describe")(b"", timeout=60)
            host, _, port = store.rpartition(":")
            assert ssl.get_server_certificate((host, int(port)), timeout=60).startswith("-----BEGIN")
        assert up.end() == (0, "")


@pytest.mark.proof
def test_the_demonstration_runs_by_certificates(tmp_path: Path) -> None:
    assert init(tmp_path / "certs") == 0
    with Up(tmp_path / "data", "--certs", str(tmp_path / "certs"), "--demo") as up:
        assert json.loads(up.read_line())["demo"] == "sent"


def test_up_says_which_certificates_are_missing(tmp_path: Path) -> None:
    done = run_duetime("up", "--data", tmp_path / "data", "--port", "0", "--certs", tmp_path / "certs")
    assert done.returncode == 1
    assert b"duetime certs init" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.proof
def test_up_beyond_loopback_takes_certificates_and_callers(tmp_path: Path) -> None:
    assert init(tmp_path / "certs") == 0
    certs = ["--certs", str(tmp_path / "certs"), "--host", "0.0.0.0"]
    with Up(tmp_path / "data", *certs, environment={"DUETIME_GATEWAY_AUTH": "required"}) as up:
        assert up.end() == (0, "")
    done = run_duetime("up", "--data", tmp_path / "data", "--port", "0", *certs)
    assert done.returncode == 1
    assert b"without authentication: set " in done.stderr
