"""`make clients`: RocketMQ's official Node, Java, Go and Rust clients, unmodified, from their package managers."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.clients.stage import Stage, documented, run, secured, staged

HERE = Path(__file__).parent
# Folder, build command in a copy of the folder, and run command there, by client.
CLIENTS = {
    "node": (["npm", "ci", "--no-audit", "--no-fund"], ["node", "main.js"]),
    "java": (
        ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"],
        ["java", "-Duser.home=.", "-cp", "target/classes:target/lib/*", "Main"],
    ),
    "go": (["go", "build", "-mod=readonly", "-o", "client", "."], ["./client"]),
    "rust": (["cargo", "build", "--release", "--locked", "--quiet"], ["target/release/client"]),
}
STAGES: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Stage]]] = {
    "one gateway": staged,
    "three gateways": lambda root: staged(root, 3),
    "TLS and keys": secured,
}
# How a client that verifies certificates is told whom to trust; Java's verifies none.
TRUST = {"node": "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "go": "CLIENTS_CA", "rust": "SSL_CERT_FILE"}

# Language, file in the folder, and run command of the document's program.
DOCUMENTED = {
    "node": ("js", "document.js", ["node", "document.js"]),
    "java": ("java", "Document.java", ["java", "-Duser.home=.", "-cp", "target/lib/*", "Document.java"]),
    "go": ("go", "document/main.go", ["go", "run", "./document"]),
    "rust": ("rust", "src/bin/document.rs", ["cargo", "run", "--release", "--locked", "--quiet", "--bin", "document"]),
}

# Programs have a HOME of their own, and Rust's compiler is found by the user's.
TOOLCHAIN = {
    variable: os.environ.get(variable, str(Path.home() / folder))
    for variable, folder in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup"))
}

# Rust's client alone compiles for five minutes of processor time.
pytestmark = [pytest.mark.clients, pytest.mark.timeout(1_800)]


class Program:
    """A client's, built."""

    def __init__(self, client: str, folder: Path) -> None:
        self.client = client
        self._folder = folder

    async def run_document(self, stage: Stage) -> tuple[int, str]:
        """The same of the document's program."""
        language, name, command = DOCUMENTED[self.client]
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(documented(language, stage.addresses))
        return await run(command, self._folder, {**TOOLCHAIN, "HOME": str(self._folder)})

    async def run(self, stage: Stage, **more: str) -> tuple[int, str]:
        """Exit code and output. Logs go below its own folder."""
        environment = {**stage.environment, "HOME": str(self._folder), **more}
        return await run([*CLIENTS[self.client][1], stage.addresses], self._folder, environment)


# Clients wait more than they work, for the ends of their polls: each has a worker of its own.
@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CLIENTS])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    build = CLIENTS[request.param][0]
    assert shutil.which(build[0]), f"{build[0]} is missing"
    folder = tmp_path_factory.mktemp("clients") / request.param
    shutil.copytree(HERE / request.param, folder, ignore=shutil.ignore_patterns("node_modules", "target"))
    subprocess.run(build, cwd=folder, check=True)
    return Program(request.param, folder)


@pytest.mark.parametrize("place", STAGES)
async def test_the_official_client_works_unmodified(program: Program, tmp_path: Path, place: str) -> None:
    async with STAGES[place](tmp_path) as stage:
        trusting = {TRUST[program.client]: stage.environment.get("CLIENTS_CA", "")} if program.client in TRUST else {}
        code, output = await program.run(stage, **trusting)
        assert code == 0, output[-8_000:]
        print(output)
        assert "all went well" in output
        (letter,) = await stage.dead_letters("failing")
        assert (letter.message.body, len(letter.attempts)) == (b"bad", 2)


async def test_certificates_are_verified_as_far_as_the_client_does_it(program: Program, tmp_path: Path) -> None:
    """Node's and Rust's clients always do, Go's where its program sees to it, Java's never."""
    async with secured(tmp_path / "ours") as stage, secured(tmp_path / "other") as other:
        stranger = other.environment["CLIENTS_CA"]
        code, output = await program.run(stage, CLIENTS_ONLY="normal", CLIENTS_CA="")
        assert (code == 0) == (program.client not in ("node", "rust")), output[-8_000:]
        if program.client in TRUST:
            code, output = await program.run(stage, CLIENTS_ONLY="normal", **{TRUST[program.client]: stranger})
            assert code != 0, "it trusted another CA"


async def test_invalid_keys_are_reported(program: Program, tmp_path: Path) -> None:
    async with secured(tmp_path) as stage:
        trusting = {TRUST[program.client]: stage.environment["CLIENTS_CA"]} if program.client in TRUST else {}
        code, output = await program.run(stage, CLIENTS_ONLY="normal", CLIENTS_SECRET="wrong", **trusting)
        assert code != 0
        assert "401" in output or "UNAUTHORIZED" in output, output[-8_000:]


async def test_the_program_of_the_document_works(program: Program, tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        code, output = await program.run_document(stage)
    assert code == 0, output
    # Node's says more, of its log.
    assert "cancel 42" in output.splitlines(), output
