"""Names of topics and groups as RocketMQ allows them, and the commands that make them.

The gRPC proxy cannot create anything; an operator does, with the server's own `mqadmin`.
"""

import re
from typing import Final

from nerve.protocol.errors import InvalidName

_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9][A-Za-z0-9_-]*)*\Z")
_LENGTH_MAX: Final = 120
RETRIES: Final = 999
"""Deliveries before the server gives a message up: our own ledger counts the tries of an envelope."""


def physical(name: str) -> str:
    """`-` becomes `--` and `.` becomes `-`, so that two names never become one.

    Raises:
        InvalidName: a character that RocketMQ does not allow, or too long.
    """
    if not _TOPIC.match(name):
        raise InvalidName(
            f"RocketMQ cannot carry the topic {name[:80]!r}",
            where="topic",
            next_step="use letters, digits, _ and - in the names of deployments and routes",
        )
    mapped = name.replace("-", "--").replace(".", "-")
    if len(mapped) > _LENGTH_MAX:
        raise InvalidName(
            f"the topic {mapped} has {len(mapped)} characters, RocketMQ takes {_LENGTH_MAX}",
            where="topic",
            next_step="use shorter names for deployment and route",
        )
    return mapped


def admin_commands(topic: str, group: str) -> str:
    """What makes a topic and its group, for the physical names.

    One queue a broker keeps the order of a publisher. Without the offset the first receive of a new
    group skips what was published before it.
    """
    to = "-n NAMESERVER"
    return "\n".join(
        (
            f"mqadmin updateTopic {to} -c CLUSTER -t {topic} -r 1 -w 1 -a +message.type=NORMAL",
            f"mqadmin updateSubGroup {to} -c CLUSTER -g {group} -r {RETRIES}",
            f"mqadmin resetOffsetByTime {to} -g {group} -t {topic} -s 0",
        )
    )
