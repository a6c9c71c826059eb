"""Every command with its arguments; what each does is imported when it is called."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="nerve",
    help="Keeps an AI agent's task alive when the processes that run it die.",
    epilog="Exit codes: 0 done, 1 the Turn failed, 2 usage, 3 conflict, 4 not found,"
    " 5 waiting or UNKNOWN, 6 unreachable, 130 interrupted (a watcher that stops cancels nothing).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Directory = Annotated[
    Path, typer.Option("--dir", envvar="NERVE_DIR", help="The folder that holds the state.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, progress as JSON lines.")]
AppFile = Annotated[Path, typer.Argument(help="The Python file with agents and tools.")]
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="A Turn id or its beginning.")]
Metrics = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics there.")
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        envvar="NERVE_BROKER",
        metavar="URL",
        show_envvar=True,
        help="amqp://... ; without it the directory's own broker. Secrets belong in NERVE_BROKER.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="NERVE_DATABASE",
        metavar="URL",
        show_envvar=True,
        help="postgresql://... ; without it the directory's own files. Secrets belong in"
        " NERVE_DATABASE or NERVE_DATABASE_FILE.",
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="Stop waiting after so many seconds; cancels nothing.")
]
STATE = Path(".nerve")


def _console(json_lines: bool) -> Any:  # the Console, whose module loads with the first command
    from nerve.deploy.output import Console

    return Console(json_lines=json_lines)


def _settings(**given: object) -> Any:  # the Settings, as above
    from nerve.common.settings import load
    from nerve.protocol.errors import BadInput

    try:
        return load(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise BadInput(str(error), where="environment") from None


def _run(work: Coroutine[Any, Any, int]) -> None:
    raise typer.Exit(asyncio.run(work))


def _watch(work: Coroutine[Any, Any, int]) -> None:
    """As `_run`; Ctrl-C ends the watching and nothing else."""
    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        from nerve.deploy.stop import INTERRUPTED

        typer.echo("Stopped watching; nothing was cancelled, the Turn goes on.", err=True)
        code = INTERRUPTED
    raise typer.Exit(code)


@app.command()
def brain(
    file: AppFile,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    metrics: Metrics = None,
    fresh: Annotated[
        bool, typer.Option(help="Let unfinished Turns go on with changed tools.")
    ] = False,
    broker: BrokerUrl = None,
    json_lines: Json = False,
) -> None:
    """Run the agents of a file; their tools run in Hands."""
    from nerve.deploy.app import load
    from nerve.deploy.serving import run_brain

    _run(
        run_brain(
            load(file),
            directory,
            console=_console(json_lines),
            settings=_settings(broker=broker, database=database),
            metrics=metrics,
            fresh=fresh,
        )
    )


@app.command()
def hands(
    file: AppFile,
    route: Annotated[str | None, typer.Option(help="Whose tools to run; the only one.")] = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Tools that run at once.")] = None,
    metrics: Metrics = None,
    broker: BrokerUrl = None,
    json_lines: Json = False,
) -> None:
    """Run the tools of a file for one route."""
    from nerve.deploy.app import load
    from nerve.deploy.serving import run_hands

    _run(
        run_hands(
            load(file),
            directory,
            console=_console(json_lines),
            settings=_settings(broker=broker, database=database),
            route=route,
            slots=slots,
            metrics=metrics,
        )
    )


@app.command()
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

    _watch(
        work(
            agent,
            text,
            directory=directory,
            console=_console(json_lines),
            settings=_settings(database=database),
            request_id=request_id,
            session=session,
            thread=thread,
            version=version,
            files=tuple(file or ()),
            wait=wait,
            timeout=timeout,
        )
    )


@app.command()
def ls(
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only those not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The newest so many.")] = 100,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """List Turns, the newest first."""
    from nerve.deploy.show import ls as work

    _run(
        work(
            directory,
            _console(json_lines),
            _settings(database=database),
            unfinished=unfinished,
            limit=limit,
        )
    )


@app.command()
def show(
    turn: TurnId,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """A Turn's Runs, Steps, model answers and tool calls in time."""
    from nerve.deploy.show import show as work

    _run(work(turn, directory, _console(json_lines), _settings(database=database)))


@app.command()
def why(
    turn: TurnId,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """What a Turn waits for, in plain words."""
    from nerve.deploy.show import why as work

    _run(work(turn, directory, _console(json_lines), _settings(database=database)))


@app.command()
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

    _watch(
        work(
            what,
            directory,
            _console(json_lines),
            _settings(database=database),
            after=after,
            follow=follow,
        )
    )


@app.command()
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

    _watch(
        work(
            turn,
            directory,
            _console(json_lines),
            _settings(database=database),
            request_id=request_id,
            wait=wait,
            timeout=timeout,
        )
    )


@app.command()
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

    _run(
        run_dev(
            file,
            directory,
            console=_console(json_lines),
            settings=_settings(),
            fresh=fresh,
            once=once,
            metrics=metrics,
        )
    )


@app.command()
def init(
    name: Annotated[Path, typer.Argument(help="The folder to make.")],
    live: Annotated[
        bool, typer.Option("--live", help="With a live model instead of a scripted one.")
    ] = False,
    json_lines: Json = False,
) -> None:
    """Write a project that runs: an agent, a tool, a test."""
    from nerve.deploy.init import init as work

    raise typer.Exit(work(name, live=live, console=_console(json_lines)))


@app.command()
def catalog(
    file: AppFile,
    json_lines: Json = False,
) -> None:
    """Print the tools of a file as JSON, for a Brain without their code: Catalog.load(...)."""
    from nerve.deploy.app import load

    print(load(file).catalog().export_bytes().decode())


@app.command()
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

    console, settings = _console(json_lines), _settings(database=database)
    if execution is None:
        _run(list_unknown(directory, console, settings))
    verdict = Verdict(
        state=verdict_state(succeeded=succeeded, failed=failed, cancelled=cancelled),
        evidence=evidence or "",
        operator=operator,
        result=result,
        effect=effect,
        request_id=request_id,
        process_gone=process_gone,
    )
    _run(work(str(execution), verdict, directory, console, settings))


@app.command()
def doctor(
    adopt: Annotated[
        str | None, typer.Option(metavar="moved|copy", help="Accept a folder from elsewhere.")
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="LEDGER", help="A ledger is lost: a new one may be made.")
    ] = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Show what is here and in force, what is wrong, and what mends it."""
    from nerve.deploy import doctor as room

    console = _console(json_lines)
    if adopt is not None:
        raise typer.Exit(room.adopt_directory(directory, adopt, console))
    if forget is not None:
        _run(room.forget_ledger(directory, forget, console))
    _run(room.doctor(directory, console, _settings(database=database)))


migrations = typer.Typer(help="The schema of the ledgers.", no_args_is_help=True)
app.add_typer(migrations, name="migrate")
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

    _run(status(directory, room, _console(json_lines), _settings(database=database)))


@migrations.command("up")
def migrate_up(
    room: Room = None,
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    json_lines: Json = False,
) -> None:
    """Make or upgrade the ledgers; what is current stays as it is."""
    from nerve.deploy.migrate import up

    _run(up(directory, room, _console(json_lines), _settings(database=database)))


@app.command()
def metrics(directory: Directory = STATE, json_lines: Json = False) -> None:
    """What the ledgers of a directory hold now, in Prometheus' text form."""
    from nerve.deploy.client import existing
    from nerve.deploy.metrics import text_of

    text = text_of(existing(directory))
    _console(json_lines).answer({"text": text}, text.rstrip())


@app.command()
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
    from nerve.deploy.demo import run

    raise typer.Exit(run(logs=logs, keep=keep, json_lines=json_lines, directory=directory))
