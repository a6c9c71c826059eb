"""Everything that can befall a RabbitMQ under a Brain and its Hands: nothing is lost and nothing is done twice.

The processes are started once and live through all of it, one fault after another. Each outcome is a line
in build/faults.jsonl. What harms the server itself wants one of its own, which is started only where
NERVE_REQUIRE names rabbitmq.
"""

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit

import pytest

from nerve.common.broker.rabbitmq import RabbitBroker
from support.amqp_proxy import AmqpProxy
from support.broker_field import Field, floods, judge
from support.rabbit import a_virtual_host, channels, manage, permit
from support.servers.rabbitmq import AMQP, MANAGEMENT, Victim
from support.services import required
from support.waiting import until

pytestmark = [
    pytest.mark.external,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.capability("E2.2"),
]

HEARTBEAT = 2
CONSUMER_TIMEOUT = 5
REPEATS_SECONDS = 120.0
LIMITS = f"-rabbit consumer_timeout {CONSUMER_TIMEOUT}000 channel_tick_interval 1000"
PASSWORD = "known-to-the-hosts-only"


@dataclass(kw_only=True)
class Ground:
    """A server, a proxy before it, and hosts that know only the proxy."""

    management: str
    proxy: AmqpProxy
    field: Field
    host: str
    user: str
    victim: Victim | None

    def manage(self, method: str, path: str, value: object = None) -> None:
        manage(method, path, json.dumps(value or {}).encode(), at=self.management)

    def delete_queues(self) -> None:
        for each in manage("GET", f"queues/{self.host}?columns=name", at=self.management):
            with suppress(HTTPError):
                self.manage("DELETE", f"queues/{self.host}/{each['name']}")

    def give(self, rights: str, password: str) -> None:
        self.manage("PUT", f"users/{self.user}", {"password": password, "tags": ""})
        permit(self.host, self.user, rights, at=self.management)

    def published_to(self, word: str) -> int:
        return sum(word in topic for topic, _ in self.proxy.published)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ExitStack() as stack:
        victim, url, management = None, "", ""
        if required("rabbitmq"):
            victim = Victim({"NERVE_RABBITMQ_ERL": LIMITS})
            stack.callback(victim.drop)
            victim.start()
            url, management = victim.url, victim.management
        else:
            url, management = AMQP.address(), MANAGEMENT.address()
        parts = urlsplit(stack.enter_context(a_virtual_host(url=url, at=management)))
        proxy = stack.enter_context(AmqpProxy.before(parts.hostname or "", parts.port or 0))
        host = parts.path[1:]
        user = f"hosts-{host}"
        place = f"{user}:{PASSWORD}@127.0.0.1:{proxy.port}"
        options = f"create=true&heartbeat={HEARTBEAT}"
        field = Field(
            tmp_path_factory.mktemp("rabbitmq"),
            urlunsplit(("amqp", place, f"/{host}", options, "")),
            NERVE_LOG_LEVEL="DEBUG",
            NERVE_PUBLISH_SECONDS="3",
        )
        found = Ground(
            management=management,
            proxy=proxy,
            field=field,
            host=host,
            user=user,
            victim=victim,
        )
        found.give(".*", PASSWORD)
        stack.callback(found.manage, "DELETE", f"users/{user}")
        stack.callback(field.close)
        for role in ("brain", "hands"):
            field.start(role)
        yield found


@pytest.fixture
def victim(ground: Ground) -> Victim:
    """The server itself, to be harmed."""
    if ground.victim is None:
        pytest.skip("a server is harmed only where NERVE_REQUIRE names rabbitmq")
    return ground.victim


@pytest.mark.report("U04")
async def test_connections_cut_while_tools_run(ground: Ground) -> None:
    async def cut() -> None:
        for _ in range(4):
            ground.proxy.cut()
            await asyncio.sleep(0.5)

    judge(await ground.field.play("connections cut", cut, seconds=0.5), moving=20)


@pytest.mark.report("U30", "U32", "U37")
@pytest.mark.storm
async def test_a_server_that_nobody_reaches_for_seconds(ground: Ground) -> None:
    async def away() -> None:
        ground.proxy.refuse()
        ground.proxy.cut()
        await asyncio.sleep(5)
        ground.proxy.refuse(False)

    judge(await ground.field.play("connections refused", away), moving=20)


@pytest.mark.report("U35")
@pytest.mark.storm
async def test_a_network_that_stands_still_for_three_heartbeats(ground: Ground) -> None:
    async def stall() -> None:
        ground.proxy.stall()
        await asyncio.sleep(3 * HEARTBEAT + 1)
        ground.proxy.go_on()

    judge(await ground.field.play("network stalled", stall), moving=20)


@pytest.mark.report("U36", "U38")
async def test_confirms_that_never_arrive(ground: Ground) -> None:
    async def eat() -> None:
        ground.proxy.eating_confirms = True
        await asyncio.sleep(5)
        ground.proxy.eating_confirms = False

    eaten = ground.proxy.eaten
    judge(await ground.field.play("confirms eaten", eat), moving=20)
    assert ground.proxy.eaten > eaten


@pytest.mark.storm
async def test_acknowledgements_that_never_arrive(ground: Ground) -> None:
    async def eat() -> None:
        ground.proxy.eating_acks = True
        await asyncio.sleep(3)
        ground.proxy.eating_acks = False
        ground.proxy.cut()

    eaten = ground.proxy.eaten
    judge(await ground.field.play("acknowledgements eaten", eat), moving=20)
    assert ground.proxy.eaten > eaten


async def test_everything_said_before_comes_again_in_another_order(ground: Ground) -> None:
    broker = RabbitBroker(
        f"amqp://{ground.user}:{PASSWORD}@127.0.0.1:{ground.proxy.port}/{ground.host}"
    )

    async def replay() -> None:
        said = [each for each in ground.proxy.published if each[0].startswith("nerve.local.")] * 2
        random.Random(7).shuffle(said)
        for topic, body in said:
            await broker.publish(topic, [body])

    try:
        assert ground.proxy.published
        judge(await ground.field.play("replayed and reordered", replay), moving=20)
    finally:
        await broker.close()


@pytest.mark.rule(13)
async def test_queues_deleted_while_they_are_consumed(ground: Ground) -> None:
    async def delete() -> None:
        for _ in range(5):
            await asyncio.to_thread(ground.delete_queues)
            await asyncio.sleep(0.3)

    # What is lost three times in a row is repeated for the third time after 35 s, then after 75.
    judge(await ground.field.play("queues deleted", delete, within=REPEATS_SECONDS), moving=20)


@pytest.mark.rule(13)
@pytest.mark.parametrize(("frozen", "word"), [("hands", ".commands"), ("brain", ".updates.")])
@pytest.mark.storm
async def test_all_that_is_queued_is_wiped_while_one_side_stands_still(
    ground: Ground, frozen: str, word: str
) -> None:
    """What went to the side that stands still is in its queue or on its way, and both are wiped."""

    async def wipe() -> None:
        # Commands of before are with Hands by now, so that there are updates for a Brain to miss.
        await until(lambda: ground.published_to(".commands") > commands, "commands are said")
        said = ground.published_to(word)
        ground.field.hosts[frozen].signal(signal.SIGSTOP)
        try:
            await until(lambda: ground.published_to(word) > said, "something is said to it")
            await asyncio.to_thread(ground.delete_queues)
        finally:
            ground.field.hosts[frozen].signal(signal.SIGCONT)

    commands = ground.published_to(".commands")
    outcome = await ground.field.play(
        f"queues wiped before {frozen}", wipe, seconds=1.0, within=REPEATS_SECONDS
    )
    judge(outcome, moving=30)


@pytest.mark.parametrize("taken", ["rights", "password"])
@pytest.mark.storm
async def test_credentials_that_are_taken_away_and_given_back(ground: Ground, taken: str) -> None:
    async def revoke() -> None:
        lost = ("^$", PASSWORD) if taken == "rights" else (".*", "another-secret")
        await asyncio.to_thread(ground.give, *lost)
        ground.proxy.cut()
        await asyncio.sleep(5)
        await asyncio.to_thread(ground.give, ".*", PASSWORD)

    outcome = await ground.field.play(f"{taken} revoked", revoke)
    judge(outcome, moving=20)
    assert 0 == outcome.ran_in_its_second_half


@pytest.mark.parametrize(
    ("alarm", "on", "off"),
    [
        (
            "memory alarm",
            ("set_vm_memory_high_watermark", "0.00001"),
            ("set_vm_memory_high_watermark", "0.6"),
        ),
        ("disk alarm", ("set_disk_free_limit", "900000GB"), ("set_disk_free_limit", "1MB")),
    ],
)
@pytest.mark.storm
async def test_a_server_that_takes_nothing_more(
    ground: Ground, victim: Victim, alarm: str, on: tuple[str, ...], off: tuple[str, ...]
) -> None:
    async def raise_it() -> None:
        await asyncio.to_thread(victim.ctl, *on)
        await asyncio.sleep(5)
        await asyncio.to_thread(victim.ctl, *off)

    judge(await ground.field.play(alarm, raise_it), moving=30)


@pytest.mark.report("U26")
@pytest.mark.storm
async def test_a_tool_that_runs_longer_than_the_servers_time_limit_for_consumers(
    ground: Ground, victim: Victim
) -> None:
    async def nothing() -> None:
        await asyncio.sleep(0.1)

    told = ground.field.text.count("consuming was interrupted")
    seconds = CONSUMER_TIMEOUT * 2.0
    outcome = await ground.field.play("a tool over the time limit", nothing, seconds=seconds)
    judge(outcome, moving=seconds + 20)
    assert ground.field.text.count("consuming was interrupted") == told


@pytest.mark.report("U35")
@pytest.mark.storm
async def test_a_server_that_is_frozen_for_three_heartbeats(ground: Ground, victim: Victim) -> None:
    async def freeze() -> None:
        with victim.frozen():
            await asyncio.sleep(3 * HEARTBEAT + 1)

    judge(await ground.field.play("server frozen", freeze), moving=30)


@pytest.mark.report("U05")
@pytest.mark.storm
async def test_a_server_that_is_killed_and_started_again(ground: Ground, victim: Victim) -> None:
    async def kill() -> None:
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)

    judge(await ground.field.play("server killed", kill, within=120), moving=30)


@pytest.mark.report("U42")
@pytest.mark.storm
async def test_hands_that_drain_for_longer_than_three_heartbeats(ground: Ground) -> None:
    """Their link lives to the end: what they finish while they stop is told, and nothing comes again."""
    told = ground.field.text.count("consuming was interrupted")

    async def drain() -> None:
        await until(lambda: len(ground.field.marks()) > done, "a tool has run")
        stopping = asyncio.to_thread(ground.field.hosts["hands"].stop)
        assert 0 == await stopping
        await asyncio.to_thread(ground.field.start, "hands")

    done = len(ground.field.marks())
    seconds = 3.0 * HEARTBEAT + 1
    outcome = await ground.field.play("hands drained", drain, seconds=seconds, after=1)
    judge(outcome, moving=seconds + 20)
    assert ground.field.text.count("consuming was interrupted") == told


@pytest.mark.report("U34")
async def test_in_the_end_there_are_exactly_our_channels(ground: Ground) -> None:
    """Of each host one connection to publish and one to consume, and a channel for each consumer."""
    ours = ["nerve consumer"] * 3 + ["nerve publisher"] * 2

    async with asyncio.timeout(60):  # The plugin counts every few seconds.
        while ours != await asyncio.to_thread(channels, ground.host, at=ground.management):
            await asyncio.sleep(0.5)


def test_the_hosts_lived_through_it_told_it_shortly_and_told_no_secret(ground: Ground) -> None:
    for host in ground.field.started:
        assert host.process.poll() in (None, 0), host.name
        assert [] == list(floods(host.events)), host.name
        assert PASSWORD not in host.text, host.name
        others = [line for line in host.text.splitlines() if not line.startswith("{")]
        assert [] == others, host.name
