"""The broker port and the brokers that need no server; brokers with a client library stay in extras."""

from nerve.common.broker.memory import MemoryBroker
from nerve.common.broker.port import Broker, Consumer, Credit, Delivery, envelopes_in
from nerve.common.broker.sqlite import Depth, SqliteBroker
from nerve.common.broker.unruly import Disorder, UnrulyBroker

__all__ = [
    "Broker",
    "Consumer",
    "Credit",
    "Delivery",
    "Depth",
    "Disorder",
    "MemoryBroker",
    "SqliteBroker",
    "UnrulyBroker",
    "envelopes_in",
]
