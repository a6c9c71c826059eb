"""A tool that does nothing, so that what is measured is everything around it."""

from nerve.protocol.catalog import Catalog

tools = Catalog(route="hands")


@tools.tool
async def nothing(text: str) -> str:
    """Returns at once."""
    return "done"
