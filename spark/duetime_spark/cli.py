"""`duetime spark`: jobs over store directories and running stores. A plug-in of the `duetime` command."""

import typer

app = typer.Typer(name="spark", rich_markup_mode=None, add_completion=False, invoke_without_command=True)


@app.callback()
def _no_command(context: typer.Context) -> None:
    """Compute backlog, lateness and proofs from the files of stores, on Spark."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> int:
    """Runs the command line; the exit code."""
    return app(standalone_mode=False) or 0
