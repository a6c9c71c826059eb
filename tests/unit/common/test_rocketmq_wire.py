"""What goes over the wire to a RocketMQ proxy, and what follows when it forgets, refuses or is silent."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from nerve.common.broker.port import Consumer, Delivery
from nerve.common.broker.rocketmq import RocketBroker
from nerve.common.broker.rocketmq_link import RocketSettings, signature
from nerve.protocol.errors import BrokerUnavailable
from support.rocketmq_proxy import Proxy, bodies, codes, proxy, serve
from support.waiting import running, soon, until

TOPIC = "nerve.local.hands.commands"


@pytest.fixture
async def server() -> AsyncGenerator[Proxy]:
    async with proxy() as found:
        yield found


@pytest.fixture
async def broker(server: Proxy) -> AsyncGenerator[RocketBroker]:
    found = RocketBroker(settings(server))
    yield found
    await found.close()


def settings(server: Proxy) -> RocketSettings:
    return RocketSettings(
        endpoint=server.endpoint, publish_seconds=2, call_seconds=1, heartbeat_seconds=0.05
    )


def consume(broker: RocketBroker, credit: int = 1000) -> Consumer:
    return broker.consume(TOPIC, f"{TOPIC}.group", credit=lambda: credit)


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += await soon(consumer.receive())
    return found


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def seen(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


@pytest.mark.report("U123")
async def test_every_receive_states_its_invisible_time_and_that_nothing_renews_it(
    server: Proxy, broker: RocketBroker
) -> None:
    await soon(broker.publish(TOPIC, [b"a"]))
    await take(consume(broker), 1)
    for request in server.requests("ReceiveMessage"):
        assert request.invisible_duration.ToSeconds() == 30
        assert request.long_polling_timeout.ToSeconds() == 5
        assert not request.auto_renew
        assert 1 <= request.batch_size <= 32
        assert request.group.name == "nerve-local-hands-commands-group"


async def test_the_settings_of_a_consumer_come_before_its_first_receive(
    server: Proxy, broker: RocketBroker
) -> None:
    await soon(broker.publish(TOPIC, [b"a"]))
    await take(consume(broker), 1)
    order = [name for name, _ in server.asked if name in ("Telemetry", "ReceiveMessage")]
    assert order[0] == "Telemetry"
    (told,) = server.requests("Telemetry")
    subscription = told.settings.subscription
    assert subscription.group.name == "nerve-local-hands-commands-group"
    assert [each.topic.name for each in subscription.subscriptions] == [
        "nerve-local-hands-commands"
    ]
    assert subscription.receive_batch_size == 32
    assert not subscription.fifo


async def test_bundles_of_one_topic_travel_together(server: Proxy, broker: RocketBroker) -> None:
    sent = numbered(100)
    await soon(broker.publish(TOPIC, sent))
    requests = server.requests("SendMessage")
    assert [len(request.messages) for request in requests] == [64, 36]
    assert [body for each in requests for body in bodies(each.messages)] == sent
    ids = [m.system_properties.message_id for each in requests for m in each.messages]
    assert len(set(ids)) == 100


async def test_a_request_stays_below_what_the_server_takes_at_once(
    server: Proxy, broker: RocketBroker
) -> None:
    await soon(broker.publish(TOPIC, [b"x" * 1024 * 1024] * 5))
    sizes = [sum(map(len, bodies(each.messages))) for each in server.requests("SendMessage")]
    assert sum(sizes) == 5 * 1024 * 1024
    assert max(sizes) <= 2 * 1024 * 1024


async def test_acknowledgements_travel_in_batches(server: Proxy, broker: RocketBroker) -> None:
    await soon(broker.publish(TOPIC, numbered(96)))
    consumer = consume(broker)
    for delivery in await take(consumer, 96):
        consumer.ack([delivery])
    await until(lambda: len(server.acked) == 96, "everything is acknowledged")
    requests = server.requests("AckMessage")
    assert max(len(request.entries) for request in requests) <= 32
    assert len(requests) <= 6


@pytest.mark.report("U124")
async def test_what_is_held_is_never_extended_and_what_is_refused_is_only_shortened(
    server: Proxy, broker: RocketBroker
) -> None:
    await soon(broker.publish(TOPIC, numbered(3)))
    consumer = consume(broker)
    first, second, _ = await take(consumer, 3)
    consumer.ack([first])
    await until(lambda: server.acked, "it is acknowledged")
    assert server.requests("ChangeInvisibleDuration") == []
    consumer.nack([second])
    await until(lambda: server.requests("ChangeInvisibleDuration"), "it is given back")
    (request,) = server.requests("ChangeInvisibleDuration")
    assert request.invisible_duration.ToSeconds() == 1
    consumer.nack([first, second])
    consumer.ack([second])
    await soon(consumer.close())
    assert len(server.acked) == 1
    assert len(server.requests("ChangeInvisibleDuration")) == 2


async def test_settings_are_told_again_at_once_when_their_stream_ends(
    server: Proxy, broker: RocketBroker
) -> None:
    consumer = consume(broker)
    async with running(consumer.receive()) as receiving:
        await until(lambda: server.requests("ReceiveMessage"), "it polls")
        server.cut()
        await until(lambda: len(server.requests("Telemetry")) == 2, "told again", 2)
        await soon(broker.publish(TOPIC, [b"a"]))
        assert seen(await soon(receiving)) == [b"a"]


async def test_a_proxy_that_forgot_a_consumer_is_told_again_at_once(
    server: Proxy, broker: RocketBroker
) -> None:
    consumer = consume(broker)
    await soon(broker.publish(TOPIC, [b"a"]))
    consumer.ack(await take(consumer, 1))
    server.forget()
    await soon(broker.publish(TOPIC, [b"b"]))
    async with asyncio.timeout(8):  # a poll may be under way
        assert seen(await consumer.receive()) == [b"b"]
    assert len(server.requests("Telemetry")) >= 2


@pytest.mark.report("U126", "U35")
async def test_no_answer_stops_a_consumer_for_good(server: Proxy, broker: RocketBroker) -> None:
    bad = ("INTERNAL_SERVER_ERROR", "TOO_MANY_REQUESTS", "PROXY_TIMEOUT", "NOT_IMPLEMENTED")
    server.answers["ReceiveMessage"] = codes(*bad)
    server.answers["Telemetry"] = codes("INTERNAL_ERROR")
    consumer = consume(broker)
    await soon(broker.publish(TOPIC, [b"a"]))
    assert seen(await take(consumer, 1)) == [b"a"]


async def test_a_consumer_outlives_its_proxy(server: Proxy) -> None:
    first = Proxy()
    listening = await serve(first, 0)
    broker = RocketBroker(settings(first))
    consumer = consume(broker)
    async with running(consumer.receive()) as receiving:
        await until(lambda: first.requests("ReceiveMessage"), "it polls")
        await listening.stop(None)
        with pytest.raises(BrokerUnavailable):
            await soon(broker.publish(TOPIC, [b"lost"]))
        second = Proxy()
        again = await serve(second, first.port)
        await until(lambda: second.requests("Telemetry"), "the new one has the settings", 8)
        await soon(broker.publish(TOPIC, [b"a"]))
        assert seen(await soon(receiving)) == [b"a"]
    await broker.close()
    await again.stop(None)


async def test_a_consumer_follows_its_topic_to_another_address(
    server: Proxy, broker: RocketBroker
) -> None:
    """A server that is started again may have another address; its routes are good for half a minute."""
    old = Proxy()
    listening = await serve(old, 0)
    server.elsewhere = old.port
    consumer = consume(broker)
    async with running(consumer.receive()) as receiving:
        await until(lambda: old.requests("ReceiveMessage"), "it polls there")
        server.elsewhere = None
        await listening.stop(None)
        await until(lambda: server.requests("ReceiveMessage"), "it polls here", 8)
        await soon(broker.publish(TOPIC, [b"a"]))
        assert seen(await soon(receiving)) == [b"a"]


async def test_a_consumer_beats(server: Proxy, broker: RocketBroker) -> None:
    async with running(consume(broker).receive()):
        await until(lambda: len(server.requests("Heartbeat")) >= 3, "it beats")
    beat = server.requests("Heartbeat")[0]
    assert beat.group.name == "nerve-local-hands-commands-group"


async def test_a_heartbeat_that_is_refused_tells_the_settings_again(
    server: Proxy, broker: RocketBroker
) -> None:
    server.answers["Heartbeat"] = codes("UNRECOGNIZED_CLIENT_TYPE")
    async with running(consume(broker).receive()):
        await until(lambda: len(server.requests("Telemetry")) == 2, "told again", 3)


@pytest.mark.report("U125")
async def test_an_expired_handle_is_no_success_and_other_failures_are_repeated(
    server: Proxy, broker: RocketBroker
) -> None:
    server.answers["AckMessage"] = codes("INVALID_RECEIPT_HANDLE", "INTERNAL_SERVER_ERROR")
    await soon(broker.publish(TOPIC, numbered(2)))
    consumer = consume(broker)
    first, second = await take(consumer, 2)
    consumer.ack([first])
    await until(lambda: len(server.requests("AckMessage")) == 1, "the first was told")
    consumer.ack([second])
    await until(lambda: server.acked == ["h2"], "the second was told until it was taken")
    assert len(server.requests("AckMessage")) == 3


async def test_a_silent_proxy_ends_a_publish_at_its_deadline(
    server: Proxy, broker: RocketBroker
) -> None:
    server.silent.add("SendMessage")
    with pytest.raises(BrokerUnavailable):
        await soon(broker.publish(TOPIC, [b"a"]), 6)
    server.silent.clear()
    await soon(broker.publish(TOPIC, [b"a"]))


@pytest.mark.parametrize("call", ["QueryRoute", "SendMessage"])
async def test_a_refused_publish_is_an_error_and_the_next_one_may_succeed(
    server: Proxy, broker: RocketBroker, call: str
) -> None:
    server.answers[call] = codes("HA_NOT_AVAILABLE")
    with pytest.raises(BrokerUnavailable, match="HA_NOT_AVAILABLE"):
        await soon(broker.publish(TOPIC, [b"a"]))
    await soon(broker.publish(TOPIC, [b"b"]))
    assert bodies(list(server.queue)) == [b"b"]


@pytest.mark.parametrize("code", ["TOPIC_NOT_FOUND", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"])
async def test_a_missing_topic_is_named_with_the_commands_that_make_it(
    server: Proxy, broker: RocketBroker, code: str
) -> None:
    server.answers["SendMessage"] = codes(code)
    with pytest.raises(BrokerUnavailable) as caught:
        await soon(broker.publish(TOPIC, [b"a"]))
    assert "mqadmin updateTopic" in caught.value.next_step
    assert "-t nerve-local-hands-commands -r 1" in caught.value.next_step
    assert "-g nerve-local-hands-commands-group" in caught.value.next_step


async def test_provision_names_what_is_missing_and_what_makes_it(
    server: Proxy, broker: RocketBroker
) -> None:
    server.answers["QueryRoute"] = codes("OK", "TOPIC_NOT_FOUND")
    [lack] = await soon(broker.lacking([TOPIC, "t.b"], reads=[], create=True))
    assert ("t.b", "the topic t-b or its group t-b-group") == (lack.topic, lack.what)
    assert "mqadmin resetOffsetByTime -n NAMESERVER -g t-b-group -t t-b" in lack.step


async def test_calls_are_signed_and_the_secret_stays_here(server: Proxy) -> None:
    keys = replace(settings(server), access_key="ak", secret_key="a-secret", namespace="ns")
    broker = RocketBroker(keys)
    await soon(broker.publish(TOPIC, [b"a"]))
    await take(consume(broker), 1)
    await broker.close()
    for found in server.metadata:
        at = found["x-mq-date-time"]
        assert found["authorization"] == signature("ak", "a-secret", at)
        assert "a-secret" not in str(found)
        assert found["x-mq-namespace"] == "ns"
    assert {name for name, _ in server.asked} >= {"Telemetry", "ReceiveMessage", "SendMessage"}


async def test_what_nobody_takes_goes_back_to_others(server: Proxy) -> None:
    broker = RocketBroker(replace(settings(server), hold_seconds=0.1))
    credit = 1
    consumer = broker.consume(TOPIC, "g", credit=lambda: credit)
    async with running(consumer.receive()) as receiving:
        await until(lambda: server.requests("ReceiveMessage"), "it polls")
        credit = 0
        await soon(broker.publish(TOPIC, [b"a"]))
        await until(lambda: server.requests("ChangeInvisibleDuration"), "it goes back")
        assert not receiving.done()
    await broker.close()


async def test_a_missing_group_is_named_with_the_commands_that_make_it(
    server: Proxy, broker: RocketBroker, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers["Telemetry"] = codes("CONSUMER_GROUP_NOT_FOUND")
    async with running(consume(broker).receive()):
        await until(lambda: len(server.requests("Telemetry")) == 2, "told again")
    errors = [record.__dict__["nerve_fields"]["error"] for record in caplog.records]
    assert "group not found" in str(errors[0])
    assert "mqadmin updateSubGroup" in errors[0].next_step
