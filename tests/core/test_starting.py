"""Modules that processes load when they start: each costs time at every restart."""

import subprocess
import sys

import pytest

DEADLINE_S = 60
PROCESSES = ("store", "retry", "scheduler", "gateway")
# Modules of rare work, loaded where they are used.
RARE = """
alembic cryptography duetime.cli duetime.client duetime_gateway.access.oidc duetime_gateway.commands
duetime_store.offline duetime_store.reading.sql jwt lark opentelemetry psycopg pygments rich tenacity typer
""".split()
# The metadata database is for the others.
RARE_IN_A_STORE = ["duetime_core.metadata", "sqlalchemy"]
_MAIN = """
import gc
import duetime_core.starting
from duetime_core.node.life import main

class Settings:
    @classmethod
    def read(cls):
        print(gc.isenabled())
        raise SystemExit

print(gc.isenabled())
main("store", Settings, None)
"""


def printed(code: str) -> list[str]:
    """The words that a program prints."""
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=DEADLINE_S).stdout.split()


def loaded(*processes: str) -> set[str]:
    """The modules that are loaded before a process reads its settings."""
    mains = ", ".join(f"duetime_{name}.__main__" for name in processes)
    return set(printed(f"import sys, {mains}; print(*(name for name, one in sys.modules.items() if one is not None))"))


def test_processes_start_without_modules_of_rare_work() -> None:
    found = loaded(*PROCESSES)
    assert {f"duetime_{name}.node" for name in PROCESSES} <= found
    assert sorted(found.intersection(RARE)) == []


@pytest.mark.proof
def test_a_store_starts_without_the_database() -> None:
    assert sorted(loaded("store").intersection([*RARE, *RARE_IN_A_STORE])) == []


def test_garbage_is_collected_once_modules_are_loaded() -> None:
    assert printed(_MAIN) == ["False", "True"]
