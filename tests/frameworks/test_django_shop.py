"""The example `examples/django_shop`, as its users run it: its own tests, and its worker on a cluster."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from duetime_core.testing import LocalCluster

from tests.docs.programs import DEADLINE_S, cluster_of_today, running

SHOP = Path(__file__).resolve().parents[2] / "examples" / "django_shop"
MANAGE = [sys.executable, "-W", "error", str(SHOP / "manage.py")]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shop.sqlite3"
    monkeypatch.setenv("SHOP_DATABASE", str(path))
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    return path


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with cluster_of_today() as cluster:
        yield cluster


def manage(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of manage.py, run from another directory."""
    return subprocess.run(
        [*MANAGE, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def states(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM orders_order ORDER BY id")]


def test_tests_of_the_shop_pass_and_its_migrations_are_complete(database: Path, tmp_path: Path) -> None:
    done = manage(tmp_path, "test", str(SHOP))
    assert done.returncode == 0, done.stderr
    assert re.search(r"Ran [1-9]\d* tests", done.stderr)
    assert manage(tmp_path, "makemigrations", "--check", "--dry-run").returncode == 0


def test_worker_cancels_an_unpaid_order(database: Path, tmp_path: Path, cluster: LocalCluster) -> None:
    assert manage(tmp_path, "migrate").returncode == 0
    code = "from orders.models import place, pay; place('tea'); place('milk'); assert pay(2); place('salt')"
    done = manage(tmp_path, "shell", "-c", code, DUETIME_SERVER=cluster.address)
    assert done.returncode == 0, done.stderr
    with running([*MANAGE, "duetime_work", "--processes", "2"], cluster, tmp_path) as worker:
        cluster.advance("30m")
        worker.wait_for("Subject: Order 1 is cancelled")
        worker.wait_for("Subject: Order 3 is cancelled")
        assert worker.stop() == 0
    assert states(database) == ["cancelled", "paid", "cancelled"]


def test_options_of_the_worker_are_those_of_the_command(database: Path, tmp_path: Path) -> None:
    wrong = manage(tmp_path, "duetime_work", "--drain", "soon", "--topic", "mail", "--reload")
    assert wrong.returncode == 2
    assert wrong.stderr == ("duetime: Invalid value: --drain 'soon' is not a length such as 90s, 1h30m or 2d\n")
    unknown = manage(tmp_path, "duetime_work", "--topic", "parcels", "--server", "127.0.0.1:1")
    assert (unknown.returncode, unknown.stderr) == (2, "duetime: topics: shop has no task of the topic parcels\n")


def test_faults_of_the_settings_are_a_system_check(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text('DUETIME = {"SERVR": "a"}\nINSTALLED_APPS = ["duetime.django"]\n')
    command = [sys.executable, "-m", "django", "duetime_work", "--settings", "faulty", "--pythonpath", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "(duetime.E001) DUETIME has the unknown key 'SERVR'; did you mean SERVER?" in done.stderr
    assert "(duetime.E001) DUETIME has no NAME" in done.stderr
    assert "Traceback" not in done.stderr
