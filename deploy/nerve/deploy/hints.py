"""Where hints between hosts go: with the ledger (bells of its directory, its database) or over the broker."""

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from nerve.brain.ledger.backend import SessionBackend, WithWakeups
from nerve.common.clock import Clock
from nerve.common.settings import Settings
from nerve.common.wakeups import Wakeups
from nerve.protocol.errors import BadInput
from nerve.protocol.topics import hints

WITH_THE_LEDGER = ("", "ledger")
OVER_THE_BROKER = "broker"


async def hinted(
    stack: AsyncExitStack, backend: SessionBackend, settings: Settings, clock: Clock
) -> SessionBackend:
    """The backend with the hints that the settings ask for."""
    wakeups = await hints_of(stack, None, settings, clock)
    return backend if wakeups is None else WithWakeups(backend, wakeups)


async def hints_of(
    stack: AsyncExitStack, route: str | None, settings: Settings, clock: Clock
) -> Wakeups | None:
    """Hints of the Brains (`route` None) or of a pool over the broker; None: those of the ledger stay.

    Raises BadInput where the broker cannot carry them.
    """
    if settings.hints_over in WITH_THE_LEDGER:
        return None
    if settings.hints_over != OVER_THE_BROKER or not urlsplit(settings.broker).scheme.startswith(
        "amqp"
    ):
        raise BadInput(
            f"hints over {settings.hints_over!r} with this broker",
            where="NERVE_HINTS_OVER",
            next_step="say broker, and name a RabbitMQ with --broker; or leave it out: hints then"
            " travel with the ledger",
        )
    from nerve.common.broker.rabbitmq_address import rabbitmq_at
    from nerve.common.broker.rabbitmq_hints import RabbitWakeups

    address = rabbitmq_at(settings.broker, publish_seconds=settings.publish_seconds)
    wakeups = RabbitWakeups(address, hints(settings.deployment, route), clock=clock)
    wakeups.open()
    stack.push_async_callback(wakeups.aclose)
    return wakeups
