"""The command that listens for Brains and Hands which reach each other by HTTP only."""

from pathlib import Path
from typing import Annotated

import typer

from nerve.deploy.commands.options import STATE, Directory, Json, app, console_of, run, settings_of

PANEL = "Hosts"


@app.command(rich_help_panel=PANEL)
def hub(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to answer; port 0 takes a free one.")
    ] = "127.0.0.1:8470",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, for https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    directory: Directory = STATE,
    json_lines: Json = False,
) -> None:
    """Queues over HTTP: `--broker https://host:port` at Brain and Hands. Needs NERVE_HTTP_TOKEN or
    NERVE_HTTP_TOKEN_FILE, the same for all."""
    from nerve.deploy.hub import run_hub

    run(
        run_hub(
            directory,
            console=console_of(json_lines),
            settings=settings_of(),
            listen=listen,
            certificate=tls_cert,
            key=tls_key,
        )
    )
