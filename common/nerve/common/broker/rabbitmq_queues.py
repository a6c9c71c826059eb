"""The queues of a topic on RabbitMQ: what they are made with, whether they stand, who may use them.

Arguments are what never changes in the life of a queue: that it is a quorum queue, where its dead
letters go, and the ceiling of its delivery limit. A policy may set a lower limit, and everything else;
of two limits RabbitMQ takes the lower one. What an operator made otherwise is taken as it stands.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.broker.rabbitmq_link import Link
from nerve.common.broker.served import Lack
from nerve.protocol.errors import BrokerUnavailable

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel

DELIVERY_LIMIT: Final = 1000
"""A requeue counts too, and our own ledger counts the tries of an envelope: this is the last resort.
It is said explicitly, because a server's default may be low and drop what exceeds it."""


def dead(topic: str) -> str:
    """Where goes what was delivered too often."""
    return f"{topic}.dead"


def arguments(topic: str, queue: str) -> dict[str, Any]:
    """With what a queue of `topic` is made."""
    if queue == dead(topic):
        return {"x-queue-type": "quorum"}
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead(topic),
        "x-delivery-limit": DELIVERY_LIMIT,
    }


async def counted(link: Link, queue: str) -> tuple[int, int] | None:
    """Ready messages and consumers of a queue; None where there is no such queue."""
    channel = await link.channel()
    try:
        found = await link.guarded(lambda: channel.declare_queue(queue, passive=True))
    except BrokerUnavailable as error:
        if type(error.__cause__).__name__ == "ChannelNotFoundEntity":
            return None
        raise
    await channel.close()
    result = found.declaration_result
    return result.message_count or 0, result.consumer_count or 0


async def ensure(link: Link, topic: str) -> None:
    """Make what is missing of a topic. What is there is not declared again: it may differ."""
    for queue in (dead(topic), topic):
        if await counted(link, queue) is None:
            await make(link, topic, queue)


async def make(link: Link, topic: str, queue: str) -> None:
    channel = await link.channel()
    await link.guarded(
        lambda: channel.declare_queue(queue, durable=True, arguments=arguments(topic, queue))
    )
    await channel.close()


async def missing(
    link: Link, settings: RabbitSettings, topics: Sequence[str], *, create: bool
) -> list[Lack]:
    """The queues that are missing for `topics`; with `create` they are made first."""
    lacks: list[Lack] = []
    for topic in topics:
        for queue in (dead(topic), topic):
            if await counted(link, queue) is not None:
                continue
            if create and await _allowed(link, lambda t=topic, q=queue: make(link, t, q)):
                continue
            lacks.append(
                Lack(
                    topic=topic,
                    what=f"the queue {queue}",
                    step=_rights(settings) if create else _command(settings, topic, queue),
                )
            )
    return lacks


async def forbidden(link: Link, settings: RabbitSettings, reads: Sequence[str]) -> list[Lack]:
    """The rights that are missing: to consume from `reads`, which stand, and to publish at all."""
    lacks: list[Lack] = []
    for topic in reads:
        if not await _allowed(link, lambda t=topic: _taste(link, t)):
            what = f"the right of {settings.user} to read {topic}"
            lacks.append(Lack(topic=topic, what=what, step=_rights(settings)))
    if not await _allowed(link, lambda: _post(link)):
        what = f"the right of {settings.user} to write to the default exchange"
        lacks.append(Lack(topic="", what=what, step=_rights(settings)))
    return lacks


async def _allowed(link: Link, call: Any) -> bool:
    try:
        await call()
    except BrokerUnavailable as error:
        if type(error.__cause__).__name__ == "ChannelAccessRefused":
            return False
        raise
    return True


async def _taste(link: Link, topic: str) -> None:
    """Consume without taking: what may come meanwhile goes back with the channel."""
    channel = await link.channel()

    async def subscribe() -> None:
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue(topic, ensure=False)
        tag = await queue.consume(_ignore)
        await queue.cancel(tag)

    await link.guarded(subscribe)
    await channel.close()


async def _post(link: Link) -> None:
    """A message to nobody comes back to who may write, and is refused to who may not."""
    from aio_pika import Message
    from aiormq.exceptions import PublishError

    channel = await link.channel(confirms=True)

    async def publish() -> None:
        try:
            await channel.default_exchange.publish(
                Message(b"-", message_id="nerve"), "nerve.nobody"
            )
        except PublishError:
            return

    await link.guarded(publish)
    await channel.close()


async def _ignore(message: Any) -> None:
    """Neither taken nor refused."""


def _command(settings: RabbitSettings, topic: str, queue: str) -> str:
    """For whoever may declare; `nerve provision` without --check does the same."""
    made = json.dumps(arguments(topic, queue), separators=(",", ":"))
    return (
        f"rabbitmqadmin --vhost={settings.virtual_host} declare queue name={queue} durable=true"
        f" 'arguments={made}'"
    )


def _rights(settings: RabbitSettings) -> str:
    return (
        f"rabbitmqctl set_permissions -p {settings.virtual_host} {settings.user}"
        " '^nerve[.]' '^(nerve[.].*|amq[.]default)$' '^nerve[.]'"
    )


async def consume_from(
    channel: "AbstractChannel", topic: str, arrived: Any, cancelled: Any
) -> None:
    """Deliver to `arrived`; `cancelled` is called where the server ends it, as with a deleted queue."""
    queue = await channel.get_queue(topic, ensure=False)
    under = await channel.get_underlay_channel()
    under.on_consumer_cancel_callbacks.add(cancelled)
    await queue.consume(arrived)
