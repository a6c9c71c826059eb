"""`nerve init`: a project that runs, with a test that runs."""

import os
from collections.abc import Mapping
from pathlib import Path

from nerve.deploy.output import Console
from nerve.protocol.errors import BadInput, Conflict

DONE = 0

_APP = '''\
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog

tools = Catalog(route="hands")


@tools.tool
async def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"sunny in {city}"


agent = ReactAgent("weather", version="1", model=ScriptedModel.from_file("weather.yaml"), tools=tools)
'''

_LIVE_APP = '''\
import os

from nerve.brain.agents import OpenAIModel
from nerve.brain.agents.react import ReactAgent
from nerve.protocol import Catalog

tools = Catalog(route="hands")


@tools.tool
async def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"sunny in {city}"


url, name = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
agent = ReactAgent("weather", version="1", model=OpenAIModel(base_url=url, model=name), tools=tools)
'''

_SCRIPT = """\
# What the scripted model answers: first it asks for the forecast, then it says what came back.
- when: {user: "\\\\bin (?P<city>\\\\w+)", round: 1}
  calls: [{tool: forecast, arguments: {city: $city}}]
- when: {tool: forecast}
  text: "The forecast: $last."
- text: "Ask me about the weather in a city."
"""

_TEST = '''\
"""The agent on the real engines, in one process and a temporary directory; no key, no network."""

import asyncio

from app import tools
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.deploy.testing import local_runtime

SCRIPT = [
    {"when": {"round": 1}, "calls": [{"tool": "forecast", "arguments": {"city": "Oslo"}}]},
    {"when": {"tool": "forecast"}, "text": "It will be: $last."},
]


def test_the_answer_holds_what_the_tool_said() -> None:
    async def scenario() -> None:
        agent = ReactAgent("weather", version="1", model=ScriptedModel(SCRIPT), tools=tools)
        async with local_runtime(agent, tools) as runtime:
            session = await runtime.session(runtime.key("s-1"), agent="weather")
            turn = await session.submit("r-1", "Will it rain in Oslo?")
            assert (await turn.result(timeout=20)).text == "It will be: sunny in Oslo."
            again = await session.submit("r-1", "Will it rain in Oslo?")
            assert again.id == turn.id

    asyncio.run(scenario())
'''

_README = """\
# {name}

```
nerve dev app.py                                                        # Brain and Hands in one process
nerve submit weather "Will it rain in Oslo?" --request-id r1 --wait     # from another terminal
nerve ls; nerve show TURN; nerve why TURN; nerve tail TURN
python -m pytest                                                        # pip install pytest
```

Kill whatever you like while it waits and start it again: the task goes on where it was.
Apart, in two terminals: `nerve brain app.py` and `nerve hands app.py --route hands`.
{live}"""

_LIVE = """
The model is live: `pip install 'nerve[openai]'`, and set `OPENAI_API_KEY`, and `OPENAI_BASE_URL` and
`OPENAI_MODEL` for any endpoint that speaks the same protocol.
"""


def init(folder: Path, *, live: bool, console: Console) -> int:
    """Write the project. Raises Conflict where the folder has anything in it."""
    _check(folder)
    try:
        (folder / "tests").mkdir(parents=True, exist_ok=True)
        for name, text in _files(folder.absolute().name, live=live).items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written: {error.strerror}",
            where="NAME",
            next_step="Name a folder that you may write",
        ) from None
    written = sorted(_files("", live=live))
    text = (
        f"Wrote {', '.join(written)} in {folder}.\n"
        f"Next: cd {folder} && nerve dev app.py\n"
        '      nerve submit weather "Will it rain in Oslo?" --wait'
    )
    console.answer({"directory": folder.absolute(), "files": written, "live": live}, text)
    return DONE


def _check(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise Conflict(f"{folder} is a file", where="NAME", next_step="Give another name")
    try:
        present = sorted(os.listdir(folder)) if folder.exists() else []
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be read: {error.strerror}", where="NAME", next_step="Name another"
        ) from None
    if present:
        raise Conflict(
            f"{folder} is not empty: it has {present[0]}",
            where="NAME",
            next_step="Give a name that does not exist yet; nothing was written",
        )


def _files(name: str, *, live: bool) -> Mapping[str, str]:
    files = {
        "app.py": _LIVE_APP if live else _APP,
        "tests/test_app.py": _TEST,
        "README.md": _README.format(name=name, live=_LIVE if live else ""),
        "pyproject.toml": _PYTEST,
        ".gitignore": ".nerve/\n__pycache__/\n",
    }
    if not live:
        files["weather.yaml"] = _SCRIPT
    return files


_PYTEST = """\
[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""
