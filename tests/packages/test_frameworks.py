"""The examples of web frameworks as their users install them: the wheel with an extra, and the examples' own tests."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.programs import DEADLINE_S, cluster_of_today, running
from tests.frameworks.test_flask import SHOP
from tests.packages.building import PROJECT, build, environment_with

# Building compiles; installing asks the package index.
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

PINNED = ("-c", PROJECT / "constraints.txt")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder away from the tree, which is on no path."""
    for name in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def example(name: str, folder: Path) -> Path:
    return shutil.copytree(PROJECT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def run(python: Path, folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-W", "error", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def check_installed(python: Path, folder: Path) -> None:
    """The package is that of the wheel, and the servers are absent, as at the client's users."""
    code = "import duetime, importlib.util as u; print(duetime.__file__, u.find_spec('duetime_core'))"
    file, core = run(python, folder, "-c", code).stdout.split()
    assert file.startswith(str(python.parents[1]))
    assert core == "None"


def test_shop_of_django_passes_its_tests_and_its_worker_runs(
    client: Path, tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = environment_with(tmp_path / "venv", *PINNED, f"duetime[django] @ file://{client}")
    check_installed(python, work)
    manage = example("django_shop", work) / "manage.py"
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.sqlite3"))
    tested = run(python, work, manage, "test", manage.parent)
    assert re.search(r"Ran [1-9]\d* tests", tested.stderr)
    run(python, work, manage, "migrate")
    with cluster_of_today() as cluster:
        code = "from orders.models import place; place('tea')"
        run(python, work, manage, "shell", "-c", code, DUETIME_SERVER=cluster.address)
        with running([str(python), str(manage), "duetime_work", "--processes", "1"], cluster, work) as worker:
            cluster.advance("30m")
            worker.wait_for("Subject: Order 1 is cancelled")
            assert worker.stop() == 0


def test_shop_of_fastapi_passes_its_tests(
    client: Path, tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test kit is the server's, which needs no compilation here; the framework's test client needs an HTTP client.
    server = build(PROJECT, tmp_path / "server", DUETIME_PURE="1")
    kit = (f"duetime[fastapi,outbox] @ file://{client}", server, "pytest", "httpx2")
    python = environment_with(tmp_path / "venv", *PINNED, *kit)
    shop = example("fastapi_shop", work)
    monkeypatch.setenv("SHOP_DATABASE", f"sqlite:///{tmp_path / 'shop.sqlite3'}")
    tested = run(python, shop, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
    assert re.search(r"[1-9] passed", tested.stdout)


def test_page_of_flask_and_a_worker_run(client: Path, tmp_path: Path, work: Path) -> None:
    python = environment_with(tmp_path / "venv", *PINNED, f"duetime[flask] @ file://{client}")
    check_installed(python, work)
    page = (PROJECT / "docs" / "howto" / "flask.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    with cluster_of_today() as cluster:
        (work / "page.py").write_text(code.replace("localhost:9800", cluster.address))
        assert run(python, work, "page.py").stdout.startswith("20")
        # The page's orders end with its process; this application shows its tasks.
        (work / "shop.py").write_text(SHOP)
        send = "import shop\nshop.create_app()\nwith shop.tasks:\n    shop.pack.send('tea')"
        run(python, work, "-c", send, DUETIME_SERVER=cluster.address)
        command = [str(python.with_name("flask")), "--app", "shop:create_app('there')", "duetime", "work"]
        with running([*command, "--processes", "1"], cluster, work) as worker:
            worker.wait_for("there: tea")
            assert worker.stop() == 0
