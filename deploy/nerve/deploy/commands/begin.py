"""Commands for the first steps: a demonstration, a project, its tools as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from nerve.deploy.commands.options import (
    AppFile,
    Json,
    app,
    console_of,
)

PANEL = "Begin"


@app.command(rich_help_panel=PANEL)
def demo(
    logs: Annotated[
        Path | None,
        typer.Option(help="A folder of log files to investigate; a small set is shipped."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder to look at.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to play; a temporary folder.")
    ] = None,
    json_lines: Json = False,
) -> None:
    """Kill Brain and Hands at the worst moments, and prove from outside what happened."""
    from nerve.deploy.demo import run as play

    raise typer.Exit(play(logs=logs, keep=keep, json_lines=json_lines, directory=directory))


@app.command(rich_help_panel=PANEL)
def init(
    name: Annotated[Path, typer.Argument(help="The folder to make.")],
    live: Annotated[
        bool, typer.Option("--live", help="With a live model instead of a scripted one.")
    ] = False,
    json_lines: Json = False,
) -> None:
    """Write a project that runs: an agent, a tool, a test."""
    from nerve.deploy.init import init as work

    raise typer.Exit(work(name, live=live, console=console_of(json_lines)))


@app.command(rich_help_panel=PANEL)
def catalog(
    file: AppFile,
    json_lines: Json = False,
) -> None:
    """Print the tools of a file as JSON, for a Brain without their code: Catalog.load(...)."""
    from nerve.deploy.app import load

    print(load(file).catalog().export_bytes().decode())
