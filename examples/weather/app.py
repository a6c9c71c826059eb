"""An agent with one tool, and a scripted model, so that no key is needed."""

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog

tools = Catalog(route="hands")


@tools.tool
async def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"sunny in {city}"


model = ScriptedModel.from_file("weather.yaml")
agent = ReactAgent("weather", version="1", model=model, tools=tools)
