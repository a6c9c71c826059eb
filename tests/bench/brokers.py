"""One hop through each broker, alone and in bulk, by the adapters themselves; run as `python -m bench.brokers`.

Addresses come from where the tests have them; a broker that is not here is left out with its reason.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from nerve.common.broker import Broker
from nerve.common.broker.rabbitmq import RabbitBroker
from support.rabbit import virtual_host
from support.rocketmq import space, two_ends

TOPIC = "nerve.bench.hands.commands"
GROUP = f"{TOPIC}.group"
Ends = tuple[Broker, Broker]


@asynccontextmanager
async def rabbitmq() -> AsyncGenerator[Ends]:
    async with virtual_host() as url:
        sender, receiver = RabbitBroker(f"{url}?create=true"), RabbitBroker(f"{url}?create=true")
        try:
            yield sender, receiver
        finally:
            await sender.close()
            await receiver.close()


@asynccontextmanager
async def rocketmq() -> AsyncGenerator[Ends]:
    found = await space()
    await found.make(TOPIC)
    async with two_ends(found) as ends:
        yield ends


BROKERS: dict[str, Callable[[], AbstractAsyncContextManager[Ends]]] = {
    "rabbitmq": rabbitmq,
    "rocketmq": rocketmq,
}


async def hops(ends: Ends, samples: int) -> list[float]:
    """Milliseconds from a publish to its arrival, one at a time with nothing else going on."""
    sender, receiver = ends
    consumer = receiver.consume(TOPIC, GROUP, credit=lambda: 1000)
    found: list[float] = []
    for number in range(samples + 5):
        began = time.perf_counter()
        publishing = asyncio.ensure_future(sender.publish(TOPIC, [b"%d" % number]))
        deliveries = await consumer.receive()
        found.append((time.perf_counter() - began) * 1000)
        consumer.ack(deliveries)
        await publishing
        await asyncio.sleep(0.02)
    await consumer.close()
    return found[5:]


async def bulk(ends: Ends, seconds: float, size: int, together: int, publishers: int) -> float:
    """Bundles a second that were published, confirmed, received and acknowledged."""
    sender, receiver = ends
    consumer = receiver.consume(TOPIC, GROUP, credit=lambda: 10_000)
    body = b"x" * size
    received = 0
    over = False

    async def publish() -> None:
        while not over:
            await sender.publish(TOPIC, [body] * together)

    async def receive() -> None:
        nonlocal received
        while True:
            deliveries = await consumer.receive()
            received += len(deliveries)
            consumer.ack(deliveries)

    receiving = asyncio.ensure_future(receive())
    publishing = asyncio.gather(*(publish() for _ in range(publishers)))
    await asyncio.sleep(0.5)
    before, began = received, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (received - before) / (time.perf_counter() - began)
    over = True
    await publishing
    before = -1
    while received != before:
        before = received
        await asyncio.sleep(0.5)
    receiving.cancel()
    await asyncio.wait([receiving])
    await consumer.close()
    return rate


async def measure(name: str, options: argparse.Namespace) -> str:
    async with BROKERS[name]() as ends:
        took = await hops(ends, options.samples)
        cpu = time.process_time()
        rates = [
            await bulk(ends, options.seconds, 1024, together, publishers)
            for together, publishers in ((1, 1), (1, 16), (16, 4))
        ]
        cpu = time.process_time() - cpu
    cuts = statistics.quantiles(took, n=100)
    return (
        f"{name:9} hop p50 {cuts[49]:5.2f} ms  p99 {cuts[98]:6.2f} ms   bundles/s: one at a time"
        f" {rates[0]:6.0f}   16 publishers {rates[1]:6.0f}   4 publishers of 16 {rates[2]:6.0f}"
        f"   ({cpu:.1f} s CPU)"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    for _ in range(options.rounds):
        for name in BROKERS:
            try:
                print(await measure(name, options), flush=True)
            except pytest.skip.Exception as reason:
                print(f"{name:9} left out: {reason}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
