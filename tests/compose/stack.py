"""A cluster of the compose files under a separate project name, beside other work of the engine."""

import json
import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.composing import PLAIN

PROJECT = Path(__file__).resolve().parents[2]
COMMAND_S = 120.0
BUILD_S = 900.0
UP_S = 180.0
# Services of `docker compose up`, with their number of containers.
SERVICES = {"postgres": 1, "store-0": 1, "store-1": 1, "scheduler": 2, "retry": 2, "gateway": 1, "console": 1}


class NoEngine(Exception):
    """There is no engine here, or no Compose; the text says why."""


class Stack:
    """One project; `address` is the gateway's, on this host."""

    def __init__(self, name: str, settings: dict[str, str] | None = None, files: tuple[str, ...] = PLAIN) -> None:
        self.name = name
        self._files = [word for file in files for word in ("--file", str(PROJECT / file))]
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        # The builder that every engine has: the other one is a plug-in.
        own = {
            "DUETIME_PORT": str(port),
            "DUETIME_CONSOLE_PORT": str(_free_port()),
            "COMPOSE_PROGRESS": "quiet",
            "DOCKER_BUILDKIT": "0",
        }
        self._environment = {**os.environ, "DUETIME_TAG": "test", **own, **(settings or {})}

    def compose(
        self, *arguments: str, timeout_s: float = COMMAND_S, check: bool = True, variables: dict[str, str] | None = None
    ) -> str:
        """`docker compose ARGUMENTS`: its standard output. `variables`: this call's values for the variables in the
        files.
        """
        command = ["docker", "compose", "--project-name", self.name, *self._files]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self._environment | (variables or {}),
        )
        assert not check or done.returncode == 0, f"docker compose {' '.join(arguments)}: {done.stderr[-4000:]}"
        return done.stdout

    def up(self, *arguments: str) -> float:
        """Starts missing services, and waits until all are healthy; returns the seconds that it took."""
        began = time.monotonic()
        self.compose("up", "--detach", "--wait", "--wait-timeout", str(int(UP_S)), *arguments, timeout_s=UP_S + 30)
        return time.monotonic() - began

    def upgrade(self, tag: str) -> float:
        """Builds images of another name, and puts their containers in the place of those that run."""
        self._environment["DUETIME_TAG"] = tag
        # All of them: `up` builds none of a profile, and the engine may have one of this name from another day.
        self.compose("--profile", "*", "build", timeout_s=BUILD_S)
        return self.up()

    def ends(self, since: float) -> list[dict[str, str]]:
        """The attributes of every end of a container since a moment: `exitCode` among them."""
        of_project = f"label=com.docker.compose.project={self.name}"
        command = ["docker", "events", "--since", f"{since:.3f}", "--until", f"{time.time():.3f}", "--format", "json"]
        told = subprocess.run(
            [*command, "--filter", "event=die", "--filter", of_project], capture_output=True, text=True, check=True
        )
        return [json.loads(line)["Actor"]["Attributes"] for line in told.stdout.splitlines()]

    def down(self) -> None:
        """Removes all containers, networks and volumes of the project."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "20")

    def containers(self, service: str | None = None) -> list[dict[str, Any]]:
        """Containers by `docker compose ps`, dead ones included."""
        lines = self.compose("ps", "--all", "--format", "json", *([service] if service else [])).splitlines()
        return [json.loads(line) for line in lines]

    def running(self) -> dict[str, int]:
        """Healthy containers by service."""
        found: dict[str, int] = {}
        for container in self.containers():
            if container["Health"] == "healthy":
                found[container["Service"]] = found.get(container["Service"], 0) + 1
        return found

    def inspect(self, container: str) -> dict[str, Any]:
        told = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True)
        found: list[dict[str, Any]] = json.loads(told.stdout)
        return found[0]

    def logs(self) -> str:
        """The last lines of every container."""
        return self.compose("--profile", "*", "logs", "--no-color", "--tail", "40", check=False)


@dataclass(frozen=True)
class Secure:
    """A cluster with TLS and users, and its first client's files."""

    stack: Stack
    # An admin's token.
    token: str = field(repr=False)
    ca: Path


def check_engine() -> None:
    """Raises NoEngine where there is no Docker engine, or its client has no Compose."""
    for command in (["docker", "info", "--format", "{{.ServerVersion}}"], ["docker", "compose", "version"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
        except OSError as error:
            raise NoEngine(str(error)) from error
        if done.returncode:
            raise NoEngine(f"{' '.join(command)}: {done.stderr.strip()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
