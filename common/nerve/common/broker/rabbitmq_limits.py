"""Which limits of a RabbitMQ server are in force for us, as far as it can be asked.

AMQP tells little. The management plugin tells what a queue has from arguments and policies; the limits of
the whole server are told by neither, so that they are known by the server's version and default only.
"""

import asyncio
import base64
import json
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.broker.rabbitmq_link import Link, trusted
from nerve.common.broker.rabbitmq_queues import counted
from nerve.common.broker.served import Limit
from nerve.common.logs import redact

_SECONDS: Final = 5.0
_MESSAGE_BYTES: Final = {"before 4.0": 134_217_728, "from 4.0": 16_777_216}
_ASK = "name its management plugin in the address: ?management=15672"
_TIMEOUT = (
    "30 minutes unless set otherwise; it ends no tool of ours: a command is acknowledged when it is"
    " admitted, before its tool starts"
)


async def limits(link: Link, settings: RabbitSettings, topics: Sequence[str]) -> list[Limit]:
    server = await link.server()
    version = server.get("version", "")
    era = "before 4.0" if version.split(".")[0] in ("", "3") else "from 4.0"
    found = [
        Limit(name="version", value=f"{server.get('product')} {version}", about="as it says"),
        Limit(name="heartbeat", value=server.get("heartbeat"), about="seconds, agreed on"),
        Limit(name="frame_max", value=server.get("frame_max"), about="bytes in a frame, agreed on"),
        Limit(
            name="max_message_size",
            value=None,
            about=f"{_MESSAGE_BYTES[era]:,} bytes unless set otherwise; ours have at most 1,048,576",
        ),
    ]
    told, reason = await _managed(settings, topics)
    for topic in topics:
        depth = await counted(link, topic)
        if depth is None:
            continue
        name, queue = f"{topic}: ", told.get(topic)
        about = f"{depth[1]} consumer(s)"
        found.append(Limit(name=name + "ready", value=depth[0], about=about))
        found += [
            Limit(
                name=name + "delivery limit",
                value=None if queue is None else effective(queue, "delivery-limit"),
                about=f"then it goes to {topic}.dead" if queue else reason,
            ),
            Limit(
                name=name + "consumer_timeout",
                value=None if queue is None else effective(queue, "consumer-timeout"),
                about=_TIMEOUT,
            ),
        ]
    return found


async def retention_ms(settings: RabbitSettings, topics: Sequence[str]) -> int | None:
    """The shortest time that one of the queues keeps a message; None where none of them drops any."""
    told, _ = await _managed(settings, topics)
    found = [effective(queue, "message-ttl") for queue in told.values()]
    return min((each for each in found if isinstance(each, int)), default=None)


def effective(queue: Mapping[str, Any], name: str) -> int | str | None:
    """What is in force: of an argument and a policy the lower one, as the server takes it."""
    given: list[Any] = [
        queue["arguments"].get(f"x-{name}"),
        dict(queue.get("effective_policy_definition") or {}).get(name),
    ]
    values = [each for each in given if isinstance(each, int)]
    return min(values) if values else None


async def _managed(
    settings: RabbitSettings, topics: Sequence[str]
) -> tuple[dict[str, Mapping[str, Any]], str]:
    """The queues that stand, as the management plugin tells them, or why it does not."""
    if settings.management is None:
        return {}, f"cannot be asked over AMQP: {_ASK}"
    try:
        queues = await asyncio.to_thread(
            _ask, settings.management, settings.virtual_host, trusted(settings)
        )
    except (OSError, ValueError) as error:
        where = urlsplit(settings.management)
        text = redact(f"{type(error).__name__}: {error}")
        return {}, f"management at {where.hostname}:{where.port or ''} did not answer: {text}"
    return {each["name"]: each for each in queues if each["name"] in topics}, ""


def _ask(management: str, virtual_host: str, context: ssl.SSLContext | None) -> list[Any]:
    parts = urlsplit(management)
    pair = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    token = base64.b64encode(pair.encode()).decode()
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(
        f"{parts.scheme}://{host}/api/queues/{quote(virtual_host, safe='')}",
        headers={"Authorization": f"Basic {token}"},
    )
    with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
        return list(json.loads(answer.read()))
