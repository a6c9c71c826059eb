"""Processes on one queue file are killed: what was confirmed arrives, what was claimed comes back."""

import signal

import pytest

from nerve.common.clock import settle
from support.queues import Child, Opened, stored, take
from support.waiting import running, soon

PREFIX = "common.broker.sqlite."


async def test_what_a_killed_consumer_held_goes_to_another(opened: Opened) -> None:
    broker = await opened.open()
    child = await Child.start(opened.directory, "hold")
    await soon(broker.publish("t", [b"a", b"b"]))
    assert "received a b" == await child.line()
    async with running(take(broker, 2)) as waiting:
        await settle(50)
        assert not waiting.done()
        await child.kill()
        assert [b"a", b"b"] == await soon(waiting)


@pytest.mark.law(1)
@pytest.mark.parametrize("hit", [1, 7])
@pytest.mark.parametrize(
    "point",
    ["before_publish", "before_publish_commit", "after_publish_commit", "before_confirm"],
)
async def test_a_killed_publisher_lost_no_confirmed_message(
    opened: Opened, point: str, hit: int
) -> None:
    child = await Child.start(opened.directory, "publish", f"{PREFIX}{point}=kill@{hit}")
    confirmed = [line.removeprefix("confirmed ").encode() for line in await child.rest()]
    assert -signal.SIGKILL == await child.process.wait()
    kept = stored(opened.directory)
    assert confirmed == kept[: len(confirmed)]
    assert len(kept) - len(confirmed) <= 1
    broker = await opened.open()
    if kept:
        assert kept == await take(broker, len(kept))


@pytest.mark.parametrize(
    "point",
    [
        *("before_claim_commit", "after_claim_commit"),
        *("before_ack_commit", "after_ack_commit"),
    ],
)
async def test_a_consumer_killed_at_any_point_at_most_repeats(opened: Opened, point: str) -> None:
    broker = await opened.open()
    sent = [b"%d" % number for number in range(12)]
    await soon(broker.publish("t", sent))
    child = await Child.start(opened.directory, "ack", f"{PREFIX}{point}=kill@2")
    lines = await child.rest()
    first = [body.encode() for line in lines for body in line.split()[1:]]
    assert -signal.SIGKILL == await child.process.wait()
    left = stored(opened.directory)
    second = await take(broker, len(left)) if left else []
    assert set(sent) == {*first, *second}
