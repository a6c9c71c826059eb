"""From an address that an operator wrote to the thing that it names; what needs an extra says so."""

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

from nerve.common.broker.port import Broker
from nerve.common.clock import Clock
from nerve.common.settings import Settings
from nerve.protocol.errors import BadInput

BROKERS = ("amqp", "amqps", "http", "https", "rocketmq")


def broker_at(url: str, settings: Settings, clock: Clock) -> Broker:
    """The broker at `url`. Raises BadInput where its kind is not known or its extra is missing."""
    scheme = urlsplit(url).scheme
    if scheme not in BROKERS:
        raise BadInput(
            f"there is no broker of the kind {scheme[:40]!r}",
            where="--broker",
            next_step="write amqp://user@host/ for RabbitMQ, rocketmq://host:8081 for RocketMQ 5,"
            " https://host:port for a hub, or leave it out",
        )
    if scheme in ("http", "https"):
        return _http(url, settings, clock)
    return _rocketmq(url, settings, clock) if scheme == "rocketmq" else _amqp(url, settings, clock)


def _amqp(url: str, settings: Settings, clock: Clock) -> Broker:
    _require("aio_pika", "rabbitmq", "--broker")
    from nerve.common.broker.rabbitmq import RabbitBroker
    from nerve.common.broker.rabbitmq_address import rabbitmq_at

    return RabbitBroker(rabbitmq_at(url, publish_seconds=settings.publish_seconds), clock=clock)


def _http(url: str, settings: Settings, clock: Clock) -> Broker:
    """Its token has variables of its own, so that the address can be shown."""
    from nerve.common.broker.http import HttpBroker
    from nerve.common.broker.http_address import http_at

    address = http_at(url, os.environ, publish_seconds=settings.publish_seconds)
    return HttpBroker(address, clock=clock)


def _rocketmq(url: str, settings: Settings, clock: Clock) -> Broker:
    """Its keys have variables of their own, so that an address with its options can be shown."""
    from nerve.common.broker.rocketmq import RocketBroker
    from nerve.common.broker.rocketmq_address import rocketmq_at

    found = rocketmq_at(url, os.environ, publish_seconds=settings.publish_seconds)
    return RocketBroker(found, clock=clock)


def _require(module: str, extra: str, where: str) -> None:
    if find_spec(module) is None:
        raise BadInput(
            f"this needs the extra {extra}",
            where=where,
            next_step=f"pip install 'nerve[{extra}]'",
        )
