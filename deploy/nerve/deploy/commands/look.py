"""Commands that show how much there is to do, and who does it."""

from nerve.deploy.commands.options import (
    STATE,
    BrokerUrl,
    DatabaseUrl,
    Directory,
    Json,
    app,
    console_of,
    run,
    settings_of,
)

PANEL = "Upkeep"


@app.command(rich_help_panel=PANEL)
def pools(
    directory: Directory = STATE,
    database: DatabaseUrl = None,
    broker: BrokerUrl = None,
    json_lines: Json = False,
) -> None:
    """Each route with its replicas, its backlog and how old the oldest of it is."""
    from nerve.deploy.pools import pools as work

    run(work(directory, console_of(json_lines), settings_of(database=database, broker=broker)))
