"""The official Python client, unmodified, in a process of its own: one gateway, and three over two shards."""

import sys
from pathlib import Path

import pytest

from tests.clients.stage import Stage, documented, run, secured, staged
from tests.tidy.sources import PROJECT

COMMAND = (sys.executable, "-m", "tests.clients.official")


async def said(stage: Stage, home: Path, **environment: str) -> tuple[int, str]:
    """The program's output about a cluster. It writes a log below its home."""
    return await run([*COMMAND, stage.addresses], PROJECT, {**stage.environment, "HOME": str(home), **environment})


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("gateways", [1, 3])
async def test_the_official_python_client_works_unmodified(tmp_path: Path, gateways: int) -> None:
    async with staged(tmp_path / "cluster", gateways) as stage:
        code, output = await said(stage, tmp_path)
    assert code == 0, output
    assert "all went well" in output


@pytest.mark.proof
@pytest.mark.timeout(300)
async def test_it_signs_and_verifies_the_gateway_s_certificate(tmp_path: Path) -> None:
    async with secured(tmp_path) as stage:
        trusting = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": stage.environment["CLIENTS_CA"]}
        code, output = await said(stage, tmp_path, **trusting, CLIENTS_ONLY="transactions")
        assert code == 0, output
        code, output = await said(stage, tmp_path, CLIENTS_ONLY="normal")
        assert code != 0, "it trusted a CA that it had not been told of"


async def test_the_program_of_the_document_works(tmp_path: Path) -> None:
    async with staged(tmp_path / "cluster") as stage:
        command = [sys.executable, "-c", documented("python", stage.addresses)]
        code, output = await run(command, PROJECT, {"HOME": str(tmp_path)})
    assert (code, output) == (0, "cancel 42\n")
