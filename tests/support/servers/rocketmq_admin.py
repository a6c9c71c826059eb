"""Topics and groups of a RocketMQ server: what `mqadmin` does with a JVM a call, in a tenth of a second.

rocketmq_admin.py --namesrv HOST:PORT ready [--broker HOST:PORT] | topic NAME | group NAME --topic TOPIC
"""

import argparse
import itertools
import json
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

ROUTE_OF_TOPIC, CLUSTER_INFO, QUERY_OFFSET, UPDATE_OFFSET = 105, 106, 14, 15
TOPIC, DELETE_TOPIC, DELETE_ROUTE, GROUP, DELETE_GROUP = 17, 215, 216, 200, 207
UPDATE_BROKER = 25
OK, TOPIC_NOT_EXIST, QUERY_NOT_FOUND = 0, 17, 22

_numbers = itertools.count(1)


class Refused(Exception):
    def __init__(self, code: int, remark: str | None) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


def call(
    address: str, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b""
) -> bytes:
    """One request of the remoting protocol; the body of its answer."""
    header = json.dumps(
        {
            "code": code,
            "language": "OTHER",
            "version": 0,
            "opaque": next(_numbers),
            "flag": 0,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": dict(fields or {}),
        }
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5) as peer:
        peer.settimeout(15)
        size = 4 + len(header) + len(body)
        peer.sendall(struct.pack(">II", size, len(header)) + header + body)
        with peer.makefile("rb") as stream:
            length, header_length = struct.unpack(">II", stream.read(8))
            header_length &= 0xFFFFFF  # The high byte is the serialisation: 0, JSON.
            answer = json.loads(stream.read(header_length))
            content = stream.read(length - 4 - header_length)
    if answer["code"] != OK:
        raise Refused(answer["code"], answer.get("remark"))
    return content


def masters(namesrv: str) -> list[str]:
    """Addresses of the master brokers. The body has bare numbers as keys, so it is not JSON."""
    body = call(namesrv, CLUSTER_INFO).decode()
    return re.findall(r'"brokerAddrs":\{"?0"?:"([^"]+)"', body)


def queues_of(namesrv: str, topic: str) -> int | None:
    """How many queues the topic has; None if it has no route."""
    try:
        body = call(namesrv, ROUTE_OF_TOPIC, {"topic": topic}).decode()
    except Refused as error:
        if error.code == TOPIC_NOT_EXIST:
            return None
        raise
    found = re.search(r'"readQueueNums":(\d+)', body)
    return int(found[1]) if found else None


def make_topic(namesrv: str, topic: str, *, queues: int = 1) -> None:
    """Returns when the name server has the route: the proxy remembers "no such topic" for 20 s."""
    for broker in masters(namesrv):
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
            "attributes": "+message.type=NORMAL",
        }
        call(broker, TOPIC, fields)
    wait("the route of the topic", lambda: queues_of(namesrv, topic) is not None)


def delete_topic(namesrv: str, topic: str) -> None:
    for broker in masters(namesrv):
        call(broker, DELETE_TOPIC, {"topic": topic})
    call(namesrv, DELETE_ROUTE, {"topic": topic})


def make_group(namesrv: str, group: str, topic: str, *, retries: int = 999) -> None:
    """With offset 0 on the queues of `topic` where the group has none: else its first receive may
    skip what was published before it."""
    brokers = masters(namesrv)
    config = {"groupName": group, "retryMaxTimes": retries}
    for broker in brokers:
        call(broker, GROUP, body=json.dumps(config).encode())
    for broker, queue in itertools.product(brokers, range(queues_of(namesrv, topic) or 0)):
        place = {"consumerGroup": group, "topic": topic, "queueId": queue}
        try:
            call(broker, QUERY_OFFSET, place | {"setZeroIfNotFound": "false"})
        except Refused as error:
            if error.code != QUERY_NOT_FOUND:
                raise
            call(broker, UPDATE_OFFSET, place | {"commitOffset": 0})


def delete_group(namesrv: str, group: str) -> None:
    for broker in masters(namesrv):
        call(broker, DELETE_GROUP, {"groupName": group, "cleanOffset": "true"})


def ready(namesrv: str, broker: str | None) -> bool:
    """Whether the name server knows a master; one that missed its first chance is made to register."""
    if not masters(namesrv) and broker is not None:
        call(broker, UPDATE_BROKER, body=b"brokerPermission=6")  # It is 6; setting it registers.
    return bool(masters(namesrv))


def wait(what: str, condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not appear within {seconds:g} s")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ready").add_argument("--broker")
    commands.add_parser("topic").add_argument("name")
    group = commands.add_parser("group")
    group.add_argument("name")
    group.add_argument("--topic", required=True)
    options = parser.parse_args()
    try:
        if options.command == "topic":
            make_topic(options.namesrv, options.name)
        elif options.command == "group":
            make_group(options.namesrv, options.name, options.topic)
        elif not ready(options.namesrv, options.broker):
            sys.exit("the name server knows no master broker")
    except (OSError, Refused, struct.error) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
