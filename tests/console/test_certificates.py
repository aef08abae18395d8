"""The console's own certificate: new connections get a renewed one, and none is refused in between."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from cryptography import x509
from duetime.tls import PemFiles
from duetime_core.errors import StartupError

from tests.certified import Certified
from tests.console.console import Browser, running

# Only pages without a call to a gateway are requested.
NOWHERE = "127.0.0.1:1"
PATIENCE_S = 60


@pytest.fixture
def files(tmp_path: Path) -> PemFiles:
    return Certified(tmp_path).issue("console")


@pytest_asyncio.fixture
async def browser(files: PemFiles) -> AsyncIterator[Browser]:
    async with running(NOWHERE, tls_cert_file=str(files.cert), tls_key_file=str(files.key)) as browser:
        yield browser


def port_of(browser: Browser) -> int:
    port = browser.client.base_url.port
    assert port is not None
    return port


async def shown_by(port: int, *, name: str | None) -> int:
    """The serial number of the certificate that a new connection is shown. `name`: None: no host is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number


def serial(files: PemFiles) -> int:
    assert files.cert is not None
    return x509.load_pem_x509_certificate(files.cert.read_bytes()).serial_number


async def until_shown(port: int, files: PemFiles, **options: str | None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await shown_by(port, name=options.get("name")) != serial(files):
            pass


@pytest.mark.parametrize("name", ["localhost", None])
async def test_a_renewed_certificate_is_used_for_new_connections(
    browser: Browser, files: PemFiles, tmp_path: Path, name: str | None
) -> None:
    first = serial(files)
    assert await shown_by(port_of(browser), name=name) == first
    Certified(tmp_path).issue("console")
    assert serial(files) != first
    await until_shown(port_of(browser), files, name=name)


async def test_no_request_is_refused_while_certificates_change(
    browser: Browser, files: PemFiles, tmp_path: Path
) -> None:
    """Neither on a connection that lasts, nor on new ones, of clients that trust the one CA of all."""
    port, certified = port_of(browser), Certified(tmp_path)
    authority = tmp_path / "ca-of-all.crt"
    authority.write_bytes(certified.authority.pair.cert)
    certified.issue("console")
    await until_shown(port, files)
    trusting, answers, is_over = ssl.create_default_context(cafile=str(authority)), 0, False
    address = f"https://localhost:{port}/healthz"

    async def ask(*, lasting: bool) -> None:
        nonlocal answers
        async with httpx2.AsyncClient(verify=trusting, timeout=PATIENCE_S) as kept:
            while not is_over:
                if lasting:
                    answer = await kept.get(address)
                else:
                    async with httpx2.AsyncClient(verify=trusting, timeout=PATIENCE_S) as client:
                        answer = await client.get(address)
                assert answer.status_code == 200
                answers += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask(lasting=True))
        tasks.create_task(ask(lasting=False))
        for _ in range(3):
            certified.issue("console")
            await until_shown(port, files)
            async with asyncio.timeout(PATIENCE_S):
                wanted = answers + 4
                while answers < wanted:
                    await shown_by(port, name=None)
        is_over = True


async def test_a_certificate_that_does_not_fit_its_key_is_not_taken(
    browser: Browser, files: PemFiles, tmp_path: Path
) -> None:
    first = serial(files)
    assert files.cert is not None
    other = Certified(tmp_path).issue("other")
    assert other.cert is not None
    files.cert.write_bytes(other.cert.read_bytes())
    metrics = browser.console._app.state.metrics.registry
    async with asyncio.timeout(PATIENCE_S):
        while not metrics.get_sample_value("duetime_tls_reloads_total", {"outcome": "refused"}):
            assert await shown_by(port_of(browser), name=None) == first
    Certified(tmp_path).issue("console")
    await until_shown(port_of(browser), files)


async def test_a_console_without_its_files_does_not_start(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with pytest.raises(StartupError, match=r"none\.pem"):
        async with running(NOWHERE, tls_cert_file=missing, tls_key_file=missing):
            pass
