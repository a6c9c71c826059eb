"""nerve with RocketMQ between Brain and Hands, PostgreSQL ledgers as ever."""

import os

from bench.peers import nerve_rabbitmq_peer
from nerve.common.broker.rocketmq_link import RocketSettings
from nerve.protocol import topics
from support.rocketmq import Space

DEPLOYMENT = "local"
ROUTES = ("hands", "nowhere")


class Peer(nerve_rabbitmq_peer.Peer):
    broker = "RocketMQ 5, asynchronous flush, one queue a topic"

    def address(self) -> str:
        return f"rocketmq://{os.environ['BENCH_ROCKETMQ']}?prefix={os.environ['BENCH_PREFIX']}"

    def provision(self, cell: str) -> None:
        """The proxy can make nothing: what an operator does with mqadmin."""
        settings = RocketSettings(
            endpoint=os.environ["BENCH_ROCKETMQ"], prefix=os.environ["BENCH_PREFIX"]
        )
        where = Space(os.environ["BENCH_ROCKETMQ_NAMESRV"], settings)
        for route in ROUTES:
            where.make_now(topics.commands(DEPLOYMENT, route))
            where.make_now(topics.controls(DEPLOYMENT, route))
        where.make_now(topics.updates(DEPLOYMENT, cell))
