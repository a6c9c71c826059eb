"""Doorbells: hints that arrive quickly, may be lost, never block, and leave nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nerve.common.clock import settle
from nerve.common.wakeups import BellPlace, Doorbell, LocalWakeups, Wakeups
from support.waiting import until

pytestmark = pytest.mark.law(9)


class Bells:
    """Doorbells that are closed after the test."""

    def __init__(self) -> None:
        self.opened: list[Doorbell] = []

    def open(self, directory: Path, *, hints: bool | None = None) -> Doorbell:
        bell = Doorbell.open(directory, hints=hints)
        self.opened.append(bell)
        return bell


@pytest.fixture
def bells() -> Iterator[Bells]:
    opened = Bells()
    yield opened
    for bell in opened.opened:
        bell.close()


def heard(bell: Wakeups, channel: str) -> list[str]:
    rings: list[str] = []
    bell.listen(channel, rings.append)
    return rings


async def test_a_ring_reaches_another_process_s_bell(bells: Bells, tmp_path: Path) -> None:
    listener, ringer = bells.open(tmp_path), bells.open(tmp_path)
    rings = heard(listener, "topic:a")
    await settle()
    ringer.ring("topic:a")
    await until(lambda: rings, "the bell rang")
    assert ["topic:a"] == rings


async def test_a_ring_reaches_listeners_of_its_own_process(bells: Bells, tmp_path: Path) -> None:
    bell = bells.open(tmp_path)
    rings = heard(bell, "topic:a")
    bell.ring("topic:a")
    await settle()
    assert ["topic:a"] == rings


async def test_a_prefix_hears_what_begins_with_it(bells: Bells, tmp_path: Path) -> None:
    listener, ringer = bells.open(tmp_path), bells.open(tmp_path)
    turns, other = heard(listener, "turn:*"), heard(listener, "topic:*")
    await settle()
    ringer.ring("turn:t1")
    ringer.ring("turn:t2")
    await until(lambda: len(turns) == 2, "both turns rang")
    assert (["turn:t1", "turn:t2"], []) == (turns, other)


async def test_rings_of_one_loop_turn_are_one_datagram(bells: Bells, tmp_path: Path) -> None:
    place = BellPlace(tmp_path / "bells")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        raw.setblocking(False)
        raw.bind(place.address("1-raw.sock"))
        place.write_ears("1-raw", ["a", "b"])
        ringer = bells.open(tmp_path)
        for channel in ("a", "b", "a", "unheard", "b"):
            ringer.ring(channel)
        await settle()
        assert b"a\nb" == raw.recv(100)
        with pytest.raises(BlockingIOError):
            raw.recv(100)


async def test_a_closed_subscription_hears_nothing(bells: Bells, tmp_path: Path) -> None:
    listener, ringer = bells.open(tmp_path), bells.open(tmp_path)
    first, second = list[str](), heard(listener, "b")
    subscription = listener.listen("a", first.append)
    await settle()
    subscription.close()
    subscription.close()
    await settle()
    ringer.ring("a")
    ringer.ring("b")
    await until(lambda: second, "b rang")
    assert [] == first


async def test_switched_off_hints_reach_nobody(bells: Bells, tmp_path: Path) -> None:
    listener, silent = bells.open(tmp_path), bells.open(tmp_path, hints=False)
    ringer = bells.open(tmp_path)
    rings, own, deaf = heard(listener, "*"), heard(silent, "*"), heard(silent, "last")
    await settle()
    silent.ring("a")
    ringer.ring("last")
    await until(lambda: rings, "the last ring came")
    await settle()
    assert (["last"], [], []) == (rings, own, deaf)


def test_the_environment_switches_hints_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERVE_HINTS", "off")

    async def scenario() -> list[str]:
        bell = LocalWakeups()
        rings = heard(bell, "a")
        bell.ring("a")
        await settle()
        return rings

    assert [] == asyncio.run(scenario())


async def test_a_deep_folder_works_although_socket_names_are_short(
    bells: Bells, tmp_path: Path
) -> None:
    deep = tmp_path.joinpath(*["a-long-folder-name"] * 10)
    deep.mkdir(parents=True)
    listener, ringer = bells.open(deep), bells.open(deep)
    rings = heard(listener, "a")
    await settle()
    ringer.ring("a")
    await until(lambda: rings, "the bell rang")


async def test_a_full_or_frozen_receiver_never_blocks_the_ringer(
    bells: Bells, tmp_path: Path
) -> None:
    place = BellPlace(tmp_path / "bells")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as frozen:
        frozen.bind(place.address("1-frozen.sock"))
        place.write_ears("1-frozen", ["*"])
        listener, ringer = bells.open(tmp_path), bells.open(tmp_path)
        rings = heard(listener, "*")
        await settle()
        for number in range(2000):
            ringer.ring(f"n:{number}")
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: "n:1999" in rings, "the healthy listener heard the last ring")


async def test_the_bell_of_a_dead_process_is_removed(bells: Bells, tmp_path: Path) -> None:
    code = (
        "import asyncio, os, signal, sys\n"
        "from nerve.common.wakeups import Doorbell\n"
        "async def main():\n"
        "    bell = Doorbell.open(sys.argv[1]); bell.listen('*', print); bell.announce()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=30)
    assert -signal.SIGKILL == child.returncode
    folder = tmp_path / "bells"
    assert 2 == len(list(folder.iterdir()))
    bell = bells.open(tmp_path)
    bell.ring("a")
    await settle()
    assert {f"{bell.name}.sock"} == {path.name for path in folder.iterdir()}


async def test_closing_leaves_no_file(tmp_path: Path) -> None:
    bell = Doorbell.open(tmp_path)
    heard(bell, "a")
    await settle()
    assert 2 == len(os.listdir(tmp_path / "bells"))
    bell.close()
    bell.close()
    bell.ring("a")
    assert [] == os.listdir(tmp_path / "bells")


async def test_a_broken_listener_does_not_silence_the_others(bells: Bells, tmp_path: Path) -> None:
    bell = bells.open(tmp_path)
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def broken(channel: str) -> None:
        raise RuntimeError(channel)

    bell.listen("a", broken)
    rings = heard(bell, "a")
    bell.ring("a")
    await settle()
    assert (["a"], 1) == (rings, len(problems))


async def test_many_channels_of_one_turn_all_arrive(bells: Bells, tmp_path: Path) -> None:
    listener, ringer = bells.open(tmp_path), bells.open(tmp_path)
    rings = heard(listener, "turn:*")
    await settle()
    for number in range(1500):
        ringer.ring(f"turn:{number:040}")
    await until(lambda: len(rings) == 1500, "all of them rang")


@pytest.mark.parametrize("channel", ["", "a\nb", "x" * 10_000])
async def test_a_channel_is_one_short_line(channel: str) -> None:
    with pytest.raises(ValueError, match="one short line"):
        heard(LocalWakeups(), channel)
