"""What commands share: the application, the options that mean the same everywhere, and how one runs."""

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
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="NERVE_METRICS",
        help="Serve Prometheus metrics, /live and /ready there.",
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        envvar="NERVE_BROKER",
        metavar="URL",
        show_envvar=True,
        help="amqp://... or rocketmq://... ; without it the directory's own broker. Secrets belong in"
        " NERVE_BROKER.",
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
ObjectsUrl = Annotated[
    str | None,
    typer.Option(
        "--objects",
        envvar="NERVE_OBJECTS",
        metavar="URL",
        show_envvar=True,
        help="s3://bucket/prefix?endpoint=http://host:9000 or file:///folder, the same for Brain and"
        " Hands; without it the directory's own. Keys belong in NERVE_OBJECTS_KEY and"
        " NERVE_OBJECTS_SECRET.",
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="Stop waiting after so many seconds; cancels nothing.")
]
STATE = Path(".nerve")


def console_of(json_lines: bool) -> Any:  # the Console, whose module loads with the first command
    from nerve.deploy.output import Console

    return Console(json_lines=json_lines)


def settings_of(**given: object) -> Any:  # the Settings, as above
    from nerve.common.settings import load
    from nerve.protocol.errors import BadInput

    try:
        return load(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise BadInput(str(error), where="environment") from None


def run(work: Coroutine[Any, Any, int]) -> None:
    raise typer.Exit(asyncio.run(work))


def watch(work: Coroutine[Any, Any, int]) -> None:
    """As `run`; Ctrl-C ends the watching and nothing else."""
    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        from nerve.deploy.stop import INTERRUPTED

        typer.echo("Stopped watching; nothing was cancelled, the Turn goes on.", err=True)
        code = INTERRUPTED
    raise typer.Exit(code)
