"""The example `examples/fastapi_shop`: its own tests, and its processes as its users run them."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.core.test_pytest_plugin import run_pytest
from tests.docs.programs import DEADLINE_S, cluster_of_today, running

SHOP = Path(__file__).resolve().parents[2] / "examples" / "fastapi_shop"
PLACE = (
    "import shop; from fastapi.testclient import TestClient; TestClient(shop.api).post('/orders', json={'item': 'tea'})"
)


def states(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "shop.sqlite3")) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM orders")]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'shop.sqlite3'}"
    monkeypatch.setenv("SHOP_DATABASE", url)
    return url


def test_tests_of_the_shop_pass(url: str, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text((SHOP / "test_shop.py").read_text())
    done = run_pytest(tmp_path, "-W", "error", PYTHONPATH=str(SHOP))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_relay_and_worker_cancel_an_unpaid_order(url: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PLACE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SHOP)},
        timeout=DEADLINE_S,
        check=True,
    )
    duetime = [sys.executable, "-m", "duetime"]
    with cluster_of_today() as cluster:
        moved = subprocess.run(
            [*duetime, "outbox", "relay", "--drain", "--database", url, "--server", cluster.address],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        assert moved.stdout.startswith("sent 1")
        cluster.advance("31m")
        with running([*duetime, "work", "shop:tasks"], cluster, SHOP) as worker:
            deadline = time.monotonic() + DEADLINE_S
            while states(tmp_path) != ["CANCELLED"]:
                assert time.monotonic() < deadline, worker.printed
                time.sleep(0.01)
            assert worker.stop() == 0
