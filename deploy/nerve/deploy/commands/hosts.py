"""Commands that go on until they are stopped: Brain, Hands, and both in one process."""

from typing import Annotated

import typer

from nerve.deploy.commands.options import (
    STATE,
    AppFile,
    BrokerUrl,
    DatabaseUrl,
    Directory,
    Json,
    Metrics,
    ObjectsUrl,
    app,
    console_of,
    run,
    settings_of,
)

PANEL = "Hosts"


@app.command(rich_help_panel=PANEL)
def dev(
    file: AppFile,
    directory: Directory = STATE,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Let unfinished Turns go on with changed tools.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when no Turn can move any more; no reload.")
    ] = False,
    metrics: Metrics = None,
    json_lines: Json = False,
) -> None:
    """Brain and Hands in one process; takes in the file again when it changes."""
    from nerve.deploy.dev import run_dev

    run(
        run_dev(
            file,
            directory,
            console=console_of(json_lines),
            settings=settings_of(),
            fresh=fresh,
            once=once,
            metrics=metrics,
        )
    )


@app.command(rich_help_panel=PANEL)
def brain(
    file: AppFile,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    metrics: Metrics = None,
    fresh: Annotated[
        bool, typer.Option(help="Let unfinished Turns go on with changed tools.")
    ] = False,
    broker: BrokerUrl = None,
    objects: ObjectsUrl = None,
    json_lines: Json = False,
) -> None:
    """Run the agents of a file; their tools run in Hands."""
    from nerve.deploy.app import load
    from nerve.deploy.serving import run_brain

    run(
        run_brain(
            load(file),
            directory,
            console=console_of(json_lines),
            settings=settings_of(broker=broker, database=database, objects=objects),
            metrics=metrics,
            fresh=fresh,
        )
    )


@app.command(rich_help_panel=PANEL)
def hands(
    file: AppFile,
    route: Annotated[
        str | None, typer.Option(envvar="NERVE_ROUTE", help="Whose tools to run; the only one.")
    ] = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Tools that run at once.")] = None,
    metrics: Metrics = None,
    broker: BrokerUrl = None,
    objects: ObjectsUrl = None,
    json_lines: Json = False,
) -> None:
    """Run the tools of a file for one route."""
    from nerve.deploy.app import load
    from nerve.deploy.serving import run_hands

    run(
        run_hands(
            load(file),
            directory,
            console=console_of(json_lines),
            settings=settings_of(broker=broker, database=database, objects=objects),
            route=route,
            slots=slots,
            metrics=metrics,
        )
    )
