"""The host's own policy over what reaches it, asked before the ledger is touched."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import Envelope, Kind
from nerve.protocol.errors import BadInput, NerveError, Unauthorized


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRequest:
    """What somebody wants of this host. `command` is there for a start only."""

    kind: Kind
    namespace: str
    execution: str
    tool: str | None = None
    command: StartCommand | None = None


Authorize = Callable[[AuthorizationRequest], Awaitable[bool | None] | bool | None]
"""Refuses by raising `Unauthorized` or by returning False."""


class Gate:
    """Checks where a message was sent to, and asks the policy."""

    def __init__(self, deployment: str, route: str, authorize: Authorize | None) -> None:
        self._deployment = deployment
        self._route = route
        self._authorize = authorize

    async def check(self, envelope: Envelope) -> None:
        """Raises BadInput for a message of another place, Unauthorized for a refused one."""
        self._check_place(envelope)
        if self._authorize is None:
            return
        body = envelope.body
        command = body if isinstance(body, StartCommand) else None
        request = AuthorizationRequest(
            kind=envelope.kind,
            namespace=envelope.namespace,
            execution=envelope.execution,
            tool=None if command is None else command.tool,
            command=command,
        )
        if await self._answer(request) is False:
            raise Unauthorized(
                f"this host does not accept {request.kind} from namespace {request.namespace}",
                where="namespace",
                next_step="ask the operator of this Hands host to allow it",
            )

    def _check_place(self, envelope: Envelope) -> None:
        place = (envelope.deployment, envelope.route)
        if place != (self._deployment, self._route):
            raise BadInput(
                f"a message for {place[0]}/{place[1]} came to {self._deployment}/{self._route}",
                where="route",
                next_step="check which topics this host and the sender were given",
            )
        body = envelope.body
        if getattr(body, "namespace", envelope.namespace) != envelope.namespace:
            raise BadInput(
                "the namespace of the body is not that of its envelope",
                where="namespace",
                next_step="the sender must name one namespace in both",
            )

    async def _answer(self, request: AuthorizationRequest) -> bool | None:
        assert self._authorize is not None
        try:
            answer = self._authorize(request)
            return await answer if inspect.isawaitable(answer) else answer
        except NerveError:
            raise
        except Exception as error:
            # A policy that fails allows nothing.
            raise Unauthorized(
                f"the authorization of this host failed: {type(error).__name__}",
                where="authorize",
                next_step="see the log of this Hands host",
            ) from error
