"""Commands of the server extra: loaded on demand, with clear errors about missing packages."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from duetime.cli import plugins, preflight
from duetime.cli.app import run

_LOADED = "import sys; from duetime.cli.app import run; run(['send', '--help']); sys.exit('numpy' in sys.modules)"


def test_commands_of_the_client_load_none_of_it() -> None:
    assert subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, timeout=60).returncode == 0


def test_help_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert re.search(r"^  store +Inspect, check", capsys.readouterr().out, re.M)


def test_without_the_server_extra_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Entry:
        def load(self) -> None:
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(plugins, "entry_points", lambda **_: [Entry()])
    assert run(["store", "inspect", "/tmp", "--json"]) == 1
    printed = capsys.readouterr().err
    assert (
        printed == "duetime: `duetime store` needs the server extra (numpy is missing): pip install 'duetime[server]'\n"
    )


def test_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nosuch"]) == 2
    assert "No such command 'nosuch'" in capsys.readouterr().err
    assert run(["sned", "orders"]) == 2
    assert capsys.readouterr().err == "duetime: No such command 'sned'. Did you mean 'send'?\n"


def test_a_command_loads_no_other_and_no_table() -> None:
    code = "import sys; from duetime.cli.app import run; run(['send', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "duetime.cli.send" in loaded
    assert loaded.isdisjoint({"duetime.cli.up", "duetime.cli.top", "rich.console", "rich.progress", "rich.table"})


def test_help_loads_no_command() -> None:
    code = "import sys; from duetime.cli.app import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {"duetime.cli.send", "duetime_store", "numpy", "sqlalchemy"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_cluster_starts_on_linux_only(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "sys", SimpleNamespace(platform=system))
    assert run(["up", "--data", str(tmp_path / "data")]) == 1
    assert (
        capsys.readouterr().err == "duetime: the cluster runs on Linux; on macOS use Docker, on Windows WSL or Docker\n"
    )
    assert not (tmp_path / "data").exists()
