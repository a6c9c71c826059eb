"""The example of an incident agent does what it says, on the real path in one process."""

import shutil
from pathlib import Path

from nerve.deploy.app import load
from nerve.deploy.host import local_host
from nerve.protocol.identity import SessionKey
from support.demo_run import file_lines

EXAMPLE = Path(__file__).parents[3] / "examples" / "incident"


async def test_it_finds_the_cause_and_pages_once(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "incident")
    app = load(folder / "app.py")
    async with local_host(app.agents, app.catalog(), tmp_path / "state") as host:
        assert host.runtime is not None
        session = await host.runtime.session(SessionKey("local", "s"), "incident")
        result = await session.call("r1", "Checkout is failing", timeout=30.0)
        again = await session.call("r1", "Checkout is failing", timeout=30.0)
    assert result.text == (
        "The database cancels queries and checkout times out. database was paged."
    )
    assert again.turn == result.turn
    [page] = file_lines(folder / "pages.jsonl")
    assert page["team"] == "database"
