"""Commands for whoever keeps the servers that hosts talk over."""

from typing import Annotated

import typer

from nerve.deploy.commands.options import (
    STATE,
    AppFile,
    BrokerUrl,
    DatabaseUrl,
    Directory,
    Json,
    app,
    console_of,
    run,
    settings_of,
)


@app.command(rich_help_panel="Upkeep")
def provision(
    file: AppFile,
    route: Annotated[
        str | None, typer.Option(help="Only what Hands of this route need; all of the file.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Make nothing; say what is missing and who must do what."),
    ] = False,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    broker: BrokerUrl = None,
    json_lines: Json = False,
) -> None:
    """Make the topics, queues and groups that an app needs of its broker; 4 where some are missing."""
    from nerve.deploy.app import load
    from nerve.deploy.provision import provision as work

    run(
        work(
            load(file),
            directory,
            console=console_of(json_lines),
            settings=settings_of(broker=broker, database=database),
            route=route,
            check=check,
        )
    )
