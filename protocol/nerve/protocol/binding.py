"""A frozen tool: what a call of it may say, where it runs, and what a caller may rely on."""

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, JsonValue

from nerve.protocol import arguments
from nerve.protocol.canonical import digest
from nerve.protocol.identity import NameField, RouteField, ToolField
from nerve.protocol.wire import Ordinal, Reason, Wire


class Powers(Wire):
    """What a tool declares of itself; everything left out is the cautious answer."""

    idempotent_start: bool = False
    """A repeated start is safe, so that it never needs to end as UNKNOWN."""
    queryable: bool = False
    """Its provider can be asked what became of a call."""
    cancellable: bool = False
    """A cancel can be confirmed by the thing itself."""
    output: bool = True
    """It may write output while it runs."""


class ToolBinding(Wire):
    """Name, schema, version, route, private target and powers; `digest` names exactly these.

    What only guides or bounds a call (description, timeout, concurrency) is not in the digest. The
    target holds references to credentials and never a credential.
    """

    name: ToolField
    version: NameField
    route: RouteField
    description: Annotated[str, Field(max_length=16_384)] = ""
    input_schema: dict[str, JsonValue]
    target: dict[str, JsonValue] = {}
    powers: Powers = Powers()
    failures: tuple[Reason, ...] = ()
    """Qualified names of the exceptions that prove a failure without an effect."""
    timeout_ms: Ordinal | None = None
    concurrency: Ordinal | None = None

    @cached_property
    def digest(self) -> str:
        fields = self.to_json()
        for guiding in ("description", "timeout_ms", "concurrency"):
            fields.pop(guiding, None)
        return digest(fields)

    def check_arguments(self, value: JsonValue) -> dict[str, JsonValue]:
        """The arguments as they are, or InvalidArguments with a text that a model can act on."""
        return arguments.check_arguments(self.name, self.input_schema, value)

    def difference(self, other: "ToolBinding") -> dict[str, tuple[Any, Any]]:
        """The fields in which two bindings of one name differ, for an error that shows both."""
        mine, theirs = self.to_json(), other.to_json()
        names = sorted(mine.keys() | theirs.keys())
        pairs = {name: (mine.get(name), theirs.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
