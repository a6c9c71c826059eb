"""At its start a Brain and the Hands that are up prove to each other that they share one object store.

Each has put an object of its own; the other reads it. Where that fails, the Brain does not start, and
says both addresses. Hands that are not up yet are not waited for: what they cannot read they hold.
"""

import asyncio
from collections.abc import Sequence
from typing import final

from nerve.brain.tools.messages import Messages
from nerve.common.broker.port import Broker
from nerve.common.clock import Clock, within
from nerve.common.large import Large
from nerve.common.logs import get_log
from nerve.protocol.controls import Hello
from nerve.protocol.envelope import seal
from nerve.protocol.errors import NerveError, Refused
from nerve.protocol.identity import new_uuid7
from nerve.protocol.topics import controls
from nerve.protocol.updates import HelloUpdate

_log = get_log("nerve.brain.greeting")

SECONDS = 2.0


@final
class Greeting:
    def __init__(self, broker: Broker, large: Large, messages: Messages, *, clock: Clock) -> None:
        self._broker = broker
        self._large = large
        self._messages = messages
        self._clock = clock
        self._token = new_uuid7(clock.now_ms())
        self._heard: asyncio.Queue[tuple[str, HelloUpdate]] = asyncio.Queue()

    def heard(self, route: str, update: HelloUpdate) -> None:
        if update.token == self._token:
            self._heard.put_nowait((route, update))

    async def meet(self, routes: Sequence[str]) -> None:
        """Greet and listen for a moment. Raises Refused with both addresses, and Unavailable."""
        proof = await self._large.proof(self._messages.deployment)
        open_ones: set[str] = set()
        for route in routes:
            body = Hello(reply_to=self._messages.reply_to, token=self._token, store=proof)
            if await self._sent(route, body):
                open_ones.add(route)
        try:
            async with within(self._clock, SECONDS):
                while open_ones:
                    route, answer = await self._heard.get()
                    await self._check(route, answer)
                    open_ones.discard(route)
        except TimeoutError:
            _log.info(
                "no Hands answered a greeting yet", cause="greeting", routes=sorted(open_ones)
            )

    async def _sent(self, route: str, body: Hello) -> bool:
        envelope = seal(
            body=body,
            deployment=self._messages.deployment,
            namespace="all",
            route=route,
            issued_at=self._clock.now_ms(),
        )
        try:
            async with within(self._clock, SECONDS):
                topic = controls(self._messages.deployment, route)
                await self._broker.publish(topic, [envelope.raw])
            return True
        except (NerveError, TimeoutError) as error:
            _log.warning("Hands could not be greeted", cause="greeting", route=route, error=error)
            return False

    async def _check(self, route: str, answer: HelloUpdate) -> None:
        problem = answer.problem
        if problem is None and answer.store is not None:
            problem = await self._large.unreadable(answer.store)
        if problem is not None:
            theirs = "none" if answer.store is None else answer.store.address
            raise Refused(
                f"this Brain and the Hands {answer.host} of the route {route} share no object store:"
                f" ours is {self._large.store.shown}, theirs is {theirs}; {problem}",
                where="--objects",
                next_step="start both sides with one --objects",
            )
