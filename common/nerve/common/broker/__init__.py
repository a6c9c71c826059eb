"""The broker port and the brokers that need no server; brokers with a client library stay in extras."""

from nerve.common.broker.memory import MemoryBroker
from nerve.common.broker.port import Broker, Consumer, Credit, Delivery, envelopes_in
from nerve.common.broker.sqlite import SqliteBroker

__all__ = [
    "Broker",
    "Consumer",
    "Credit",
    "Delivery",
    "MemoryBroker",
    "SqliteBroker",
    "envelopes_in",
]
