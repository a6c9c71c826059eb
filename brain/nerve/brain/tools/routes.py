"""From the destination of an outbox row to the executor that takes it there."""

from collections.abc import Callable, Mapping, Sequence

from nerve.brain.tools.messages import CONTROLS, parse_destination
from nerve.protocol.errors import Unavailable
from nerve.protocol.executor import Executor


class Routes:
    """Executors by route. A route nobody registered is made by `make`, where a broker allows it."""

    def __init__(
        self, executors: Mapping[str, Executor], make: Callable[[str], Executor] | None = None
    ) -> None:
        self._executors = dict(executors)
        self._make = make

    @property
    def executors(self) -> Mapping[str, Executor]:
        return self._executors

    async def publish(self, destination: str, envelopes: Sequence[bytes]) -> None:
        """What the relay calls; raises Unavailable where nobody takes the route now."""
        lane, route = parse_destination(destination)
        executor = self._executor(route)
        if lane == CONTROLS:
            await executor.control(envelopes)
        else:
            await executor.start(envelopes)

    def _executor(self, route: str) -> Executor:
        found = self._executors.get(route)
        if found is None and self._make is not None:
            found = self._executors[route] = self._make(route)
        if found is None:
            raise Unavailable(
                f"no executor is registered for the route {route}",
                where="executors",
                next_step=f"pass executors={{'{route}': ...}} or a broker",
            )
        return found
