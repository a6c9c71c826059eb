"""Commands for whoever keeps a directory well."""

from typing import Annotated

import typer

from nerve.deploy.commands.options import (
    STATE,
    BrokerUrl,
    DatabaseUrl,
    Directory,
    Json,
    ObjectsUrl,
    app,
    console_of,
    run,
    settings_of,
)

PANEL = "Upkeep"


@app.command(rich_help_panel=PANEL)
def reconcile(
    execution: Annotated[
        str | None, typer.Argument(help="The execution; without it, what is UNKNOWN.")
    ] = None,
    succeeded: Annotated[bool, typer.Option("--succeeded", help="It did its work.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="It did not.")] = False,
    cancelled: Annotated[bool, typer.Option("--cancelled", help="It was stopped.")] = False,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="What it returned.")] = None,
    effect: Annotated[
        str | None,
        typer.Option(help="none, completed or unconfirmed; by default as the state says."),
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(help="Where that can be verified; kept in the receipt.")
    ] = None,
    operator: Annotated[str | None, typer.Option(help="Who says so; the user.")] = None,
    request_id: Annotated[str | None, typer.Option(help="Makes it safe to repeat.")] = None,
    process_gone: Annotated[
        bool, typer.Option("--process-gone", help="I verified that its old process is gone.")
    ] = False,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """List UNKNOWN outcomes, or settle one with evidence; nothing is run again."""
    from nerve.deploy.reconcile import Verdict, list_unknown, verdict_state
    from nerve.deploy.reconcile import reconcile as work

    console, settings = console_of(json_lines), settings_of(database=database)
    if execution is None:
        run(list_unknown(directory, console, settings))
    verdict = Verdict(
        state=verdict_state(succeeded=succeeded, failed=failed, cancelled=cancelled),
        evidence=evidence or "",
        operator=operator,
        result=result,
        effect=effect,
        request_id=request_id,
        process_gone=process_gone,
    )
    run(work(str(execution), verdict, directory, console, settings))


@app.command(rich_help_panel=PANEL)
def doctor(
    adopt: Annotated[
        str | None, typer.Option(metavar="moved|copy", help="Accept a folder from elsewhere.")
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="LEDGER", help="A ledger is lost: a new one may be made.")
    ] = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    broker: BrokerUrl = None,
    objects: ObjectsUrl = None,
    json_lines: Json = False,
) -> None:
    """Show what is here and in force, what is wrong, and what mends it."""
    from nerve.deploy import doctor as room

    console = console_of(json_lines)
    if adopt is not None:
        raise typer.Exit(room.adopt_directory(directory, adopt, console))
    if forget is not None:
        run(room.forget_ledger(directory, forget, console))
    settings = settings_of(database=database, broker=broker, objects=objects)
    if settings.database:
        from nerve.deploy.doctor_database import doctor as of_database

        run(of_database(console, settings))
    run(room.doctor(directory, console, settings))


@app.command(rich_help_panel=PANEL)
def health(
    live: Annotated[
        bool, typer.Option("--live", help="Only whether the process itself goes on.")
    ] = False,
    metrics: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="NERVE_METRICS", help="Where the host serves."),
    ] = "",
    json_lines: Json = False,
) -> None:
    """Ask a running host whether it can take work: ledger, broker and lease; 6 where it cannot."""
    from nerve.deploy.health import check

    raise typer.Exit(check(metrics, live=live, as_json=json_lines))


quarantined = typer.Typer(
    help="Messages that could not be taken in and wait for a person.", no_args_is_help=True
)
app.add_typer(quarantined, name="quarantine", rich_help_panel=PANEL)
Execution = Annotated[str, typer.Argument(metavar="EXECUTION", help="As `ls` prints it.")]


@quarantined.command("ls")
def quarantine_ls(
    directory: Directory = STATE, database: DatabaseUrl = None, json_lines: Json = False
) -> None:
    """What is quarantined: why, how often it was tried, and whose it is."""
    from nerve.deploy.quarantine import ls

    run(ls(directory, console_of(json_lines), settings_of(database=database)))


@quarantined.command("show")
def quarantine_show(
    execution: Execution,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """The messages of one execution, without what they carry."""
    from nerve.deploy.quarantine import show

    run(show(execution, directory, console_of(json_lines), settings_of(database=database)))


@quarantined.command("replay")
def quarantine_replay(
    execution: Execution,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """What was wrong is mended: let hosts try again."""
    from nerve.deploy.quarantine import replay

    run(replay(execution, directory, console_of(json_lines), settings_of(database=database)))


@quarantined.command("drop")
def quarantine_drop(
    execution: Execution,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Give it up: a command is refused for good, a lost result becomes a placeholder."""
    from nerve.deploy.quarantine import drop

    console, settings = console_of(json_lines), settings_of(database=database)
    run(drop(execution, directory, console, settings, yes=yes))


migrations = typer.Typer(help="The schema of the ledgers.", no_args_is_help=True)
app.add_typer(migrations, name="migrate", rich_help_panel=PANEL)
Room = Annotated[
    str | None, typer.Option("--room", help="brain or hands: what an empty database will hold.")
]


@migrations.command("status")
def migrate_status(
    room: Room = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Which schema each ledger has, and which one this build writes."""
    from nerve.deploy.migrate import status

    run(status(directory, room, console_of(json_lines), settings_of(database=database)))


@migrations.command("up")
def migrate_up(
    room: Room = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Make or upgrade the ledgers; what is current stays as it is."""
    from nerve.deploy.migrate import up

    run(up(directory, room, console_of(json_lines), settings_of(database=database)))


@app.command(rich_help_panel=PANEL)
def metrics(directory: Directory = STATE, json_lines: Json = False) -> None:
    """What the ledgers of a directory hold now, in Prometheus' text form."""
    from nerve.deploy.client import existing
    from nerve.deploy.metrics import text_of

    text = text_of(existing(directory))
    console_of(json_lines).answer({"text": text}, text.rstrip())
