"""Commands about Turns: give one, look at it, follow it, end it."""

from pathlib import Path
from typing import Annotated

import typer

from nerve.deploy.commands.options import (
    STATE,
    DatabaseUrl,
    Directory,
    Json,
    Timeout,
    TurnId,
    app,
    console_of,
    run,
    settings_of,
    watch,
)

PANEL = "Tasks"


@app.command(rich_help_panel=PANEL)
def submit(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    text: Annotated[str | None, typer.Argument(help="What to ask it.")] = None,
    request_id: Annotated[
        str | None, typer.Option(help="Makes it safe to ask again; made and told where absent.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="The conversation to go on with: name or namespace/name.")
    ] = None,
    thread: Annotated[str | None, typer.Option(help="A Thread of the session.")] = None,
    version: Annotated[str | None, typer.Option(help="The agent's version; the newest.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Text, image, audio or video to send; - reads stdin.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it has ended.")] = False,
    timeout: Timeout = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Give an agent a task. After it returns, the task is durable."""
    from nerve.deploy.submit import submit as work

    watch(
        work(
            agent,
            text,
            directory=directory,
            console=console_of(json_lines),
            settings=settings_of(database=database),
            request_id=request_id,
            session=session,
            thread=thread,
            version=version,
            files=tuple(file or ()),
            wait=wait,
            timeout=timeout,
        )
    )


@app.command(rich_help_panel=PANEL)
def ls(
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only those not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The newest so many.")] = 100,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """List Turns, the newest first."""
    from nerve.deploy.show import ls as work

    run(
        work(
            directory,
            console_of(json_lines),
            settings_of(database=database),
            unfinished=unfinished,
            limit=limit,
        )
    )


@app.command(rich_help_panel=PANEL)
def show(
    turn: TurnId,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """A Turn's Runs, Steps, model answers and tool calls in time."""
    from nerve.deploy.show import show as work

    run(work(turn, directory, console_of(json_lines), settings_of(database=database)))


@app.command(rich_help_panel=PANEL)
def why(
    turn: TurnId,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """What a Turn waits for, in plain words."""
    from nerve.deploy.show import why as work

    run(work(turn, directory, console_of(json_lines), settings_of(database=database)))


@app.command(rich_help_panel=PANEL)
def tail(
    what: Annotated[str, typer.Argument(metavar="TURN|SESSION")],
    after: Annotated[str | None, typer.Option(help="Only events after this cursor.")] = None,
    follow: Annotated[bool, typer.Option(help="Go on as new ones are committed.")] = True,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Public events as they are committed."""
    from nerve.deploy.show import tail as work

    watch(
        work(
            what,
            directory,
            console_of(json_lines),
            settings_of(database=database),
            after=after,
            follow=follow,
        )
    )


@app.command(rich_help_panel=PANEL)
def cancel(
    turn: TurnId,
    request_id: Annotated[str | None, typer.Option(help="Makes it safe to ask again.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    timeout: Timeout = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Ask for a Turn's end: at once where it is queued, else when its tools have ended."""
    from nerve.deploy.show import cancel as work

    watch(
        work(
            turn,
            directory,
            console_of(json_lines),
            settings_of(database=database),
            request_id=request_id,
            wait=wait,
            timeout=timeout,
        )
    )
