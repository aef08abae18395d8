"""The command's help: sections, short summaries, examples, version, completion."""

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duetime
import pytest
import typer
from duetime.cli.app import app, run
from duetime.cli.common import equip
from duetime.cli.plugins import SECTIONS, SUMMARY_CHARS_MAX

from tests.cli.cluster import run_duetime


def commands() -> dict[str, Any]:
    """All commands by their words, those of installed packages too."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            child = command.get_command(None, name)
            yield " ".join((*words, name)), child
            yield from below(child, (*words, name))

    return dict(below(equip(typer.main.get_command(app)), ()))


def test_every_summary_is_a_short_sentence() -> None:
    found = {name: command.get_short_help_str(1_000) for name, command in commands().items()}
    assert len(found) > 50
    assert {name: text for name, text in found.items() if not text.endswith(".")} == {}
    assert {name: text for name, text in found.items() if len(text) > SUMMARY_CHARS_MAX} == {}


def test_the_help_has_the_summaries_of_the_commands() -> None:
    shown = {name: text for summaries in SECTIONS.values() for name, text in summaries.items()}
    found = commands()
    assert {name: found[name].get_short_help_str(1_000) for name in shown} == shown


def test_every_command_has_examples() -> None:
    assert [name for name, one in commands().items() if "Examples:" not in one.help and name != "quotas set"] == []


def test_help_has_every_command_in_a_section_and_none_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    shown = re.findall(r"^  ([a-z]+)  +[A-Z].*\.$", text, re.M)
    assert set(shown) == {name for names in SECTIONS.values() for name in names}
    assert "..." not in text.partition("Send and read:")[2]
    assert [title for title in SECTIONS if f"\n{title}:\n" not in text] == []


def test_listings_can_be_watched_and_changes_can_not() -> None:
    options = {name: {one.name for one in command.params} for name, command in commands().items()}
    watched = {name for name, names in options.items() if "watch" in names}
    assert watched >= {"lanes", "topics", "topics list", "groups", "groups list", "quotas list", "dlq list", "pending"}
    assert watched >= {"backlog", "audit", "transactions list", "users list", "grants list", "outbox status", "show"}
    assert "groups retries" in watched
    assert not watched & {"groups retry-now", "groups discard-retries"}
    assert not watched & {"send", "cancel", "dlq redrive", "groups delete", "lanes pause", "users create", "consume"}
    assert {name for name, names in options.items() if ("output" in names) != ("as_json" in names)} == set()
    assert {name for name, names in options.items() if ("context_name" in names) != ("server" in names)} == set()


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"duetime {version('duetime')}\n"
    assert duetime.__version__ == version("duetime")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_DUETIME_COMPLETE=" in capsys.readouterr().out
    assert run(["completion", "tcsh"]) == 2


@pytest.mark.parametrize(
    ("words", "completed"),
    [("duetime la", "lanes"), ("duetime lanes pa", "pause"), ("duetime lanes --wi", "--wide"), ("duetime us", "users")],
)
def test_bash_completes_commands_and_options(words: str, completed: str) -> None:
    environment = {
        "_DUETIME_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = run_duetime(environment=environment)
    assert (done.returncode, done.stdout.decode().split()) == (0, [completed])


def test_bash_takes_the_script(tmp_path: Path) -> None:
    script = tmp_path / "duetime.bash"
    script.write_bytes(run_duetime("completion", "bash").stdout)
    assert subprocess.run(["bash", "-c", f". {script} && complete -p duetime"], check=False, timeout=60).returncode == 0
