"""`duetime completion`: the completion script of a shell."""

from enum import StrEnum
from typing import Annotated

import typer
from duetime_format.printing import echo
from typer._completion_shared import get_completion_script


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print the completion script of a shell.

    `duetime --install-completion` installs it for the current shell.

    \b
    Examples:
      duetime completion bash > ~/.local/share/bash-completion/completions/duetime
      duetime completion zsh > ~/.zfunc/_duetime
      duetime completion fish > ~/.config/fish/completions/duetime.fish
    """
    echo(get_completion_script(prog_name="duetime", complete_var="_DUETIME_COMPLETE", shell=Shell(shell).value))
