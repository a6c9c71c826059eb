"""Doorbells: hints between processes on one machine, by one Unix datagram socket a process.

A hint says "look again now" and nothing else. It may be lost, doubled or late; whoever waits also scans.
Each process owns two files in `<directory>/bells`: `<id>.sock`, where it hears, and `<id>.ears`, which
lists the channels it listens to, so that a ring wakes only those who care. Rings are coalesced to one
datagram per destination and turn of the event loop, and never block. Files of dead processes are removed
by whoever finds that nobody answers there. `NERVE_HINTS=off` drops every ring.
"""

import asyncio
import errno
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, final

from nerve.common.clock import Clock, SystemClock

Listener = Callable[[str], object]

_SUN_PATH_BYTES = 100
_DATAGRAM_BYTES = 16_384
_RETRY_SECONDS = 0.002
_RETRIES = 5
_RACY_MS = 100
_GONE = frozenset({errno.ECONNREFUSED, errno.ENOENT})


class Subscription(Protocol):
    def close(self) -> None: ...


class Wakeups(Protocol):
    """Where hints go out and come in. Every call belongs to the event loop's thread and returns at once."""

    def ring(self, channel: str) -> None:
        """Wake whoever listens to `channel`, in this process and in others, soon."""
        ...

    def listen(self, channel: str, callback: Listener) -> Subscription:
        """Call `callback(channel)` on the loop after a ring; a trailing `*` listens to a prefix.

        Waits for many short-lived things (one Turn each) share one prefix and sort out by the argument.
        """
        ...

    def close(self) -> None: ...


@final
@dataclass(slots=True, eq=False)
class _Ear:
    ears: "Ears"
    channel: str
    callback: Listener

    def close(self) -> None:
        self.ears.remove(self)


@final
class Ears:
    """Who in this process listens to what."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._exact: dict[str, list[_Ear]] = {}
        self._prefix: list[_Ear] = []
        self._changed = changed

    def add(self, channel: str, callback: Listener) -> Subscription:
        if not channel or "\n" in channel or len(channel.encode()) > _DATAGRAM_BYTES // 2:
            raise ValueError(f"channel {channel[:80]!r} must be one short line of text")
        ear = _Ear(self, channel, callback)
        known = channel in self.patterns()
        if channel.endswith("*"):
            self._prefix.append(ear)
        else:
            self._exact.setdefault(channel, []).append(ear)
        if not known:
            self._changed()
        return ear

    def remove(self, ear: _Ear) -> None:
        siblings = self._prefix if ear.channel.endswith("*") else self._exact.get(ear.channel, [])
        if ear in siblings:
            siblings.remove(ear)
            if not siblings:
                self._exact.pop(ear.channel, None)
            if ear.channel not in self.patterns():
                self._changed()

    def patterns(self) -> set[str]:
        return {*self._exact, *(ear.channel for ear in self._prefix)}

    def hear(self, channels: Iterable[str]) -> None:
        for channel in channels:
            for ear in self._exact.get(channel, ()):
                _call(ear, channel)
            for ear in self._prefix:
                if channel.startswith(ear.channel[:-1]):
                    _call(ear, channel)


def _call(ear: _Ear, channel: str) -> None:
    """Later in the same loop turn, so that one broken listener neither silences nor re-enters the others."""
    asyncio.get_running_loop().call_soon(ear.callback, channel)


@final
class LocalWakeups:
    """Hints inside one process, where no other one shares the state."""

    def __init__(self, *, hints: bool | None = None) -> None:
        self._ears = Ears(lambda: None)
        self._hints = hints_enabled() if hints is None else hints
        self._pending: dict[str, None] = {}

    def ring(self, channel: str) -> None:
        if self._hints:
            if not self._pending:
                asyncio.get_running_loop().call_soon(self._flush)
            self._pending[channel] = None

    def listen(self, channel: str, callback: Listener) -> Subscription:
        return self._ears.add(channel, callback)

    def hear(self, channels: Iterable[str]) -> None:
        """What others rang, for a kind of wakeups that has a way to them."""
        self._ears.hear(channels)

    def close(self) -> None:
        self._pending.clear()

    def _flush(self) -> None:
        channels, self._pending = self._pending, {}
        self._ears.hear(channels)


@final
@dataclass(slots=True, eq=False)
class _Neighbour:
    """Another process's bell, and what could not be delivered to it yet."""

    name: str
    exact: frozenset[str]
    prefixes: tuple[str, ...]
    unsent: dict[str, None] = field(default_factory=dict[str, None])
    tries: int = 0

    def cares(self, channel: str) -> bool:
        return channel in self.exact or channel.startswith(self.prefixes)


@final
class Doorbell:
    """The bells of one state directory."""

    def __init__(self, place: "BellPlace", *, hints: bool, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._hints = hints
        self._loop = asyncio.get_running_loop()
        self._ears = Ears(self._announce_soon)
        self._pending: dict[str, None] = {}
        self._neighbours: dict[str, _Neighbour] = {}
        self._seen_ns = -1
        self._announcing = False
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._socket.bind(place.address(f"{self._name}.sock"))
        self._loop.add_reader(self._socket.fileno(), self._receive)

    @classmethod
    def open(
        cls, directory: Path | str, *, hints: bool | None = None, clock: Clock | None = None
    ) -> Self:
        """Join the bells below `directory`, which must exist. Needs a running event loop."""
        place = BellPlace(Path(directory) / "bells")
        try:
            place.sweep()
            hints = hints_enabled() if hints is None else hints
            return cls(place, hints=hints, clock=clock or SystemClock())
        except BaseException:
            place.close()
            raise

    @property
    def name(self) -> str:
        return self._name

    def ring(self, channel: str) -> None:
        if not self._hints or self._closed:
            return
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending[channel] = None

    def listen(self, channel: str, callback: Listener) -> Subscription:
        return self._ears.add(channel, callback)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._place.remove(self._name)
        self._place.close()

    def _announce_soon(self) -> None:
        if not self._announcing and not self._closed:
            self._announcing = True
            self._loop.call_soon(self.announce)

    def announce(self) -> None:
        """Publish what this process listens to; done by itself at the end of the present loop turn."""
        if not self._closed:
            self._announcing = False
            with suppress(OSError):
                self._place.write_ears(self._name, self._ears.patterns())

    def _flush(self) -> None:
        if self._closed:
            return
        channels, self._pending = self._pending, {}
        self._look_around()
        for neighbour in list(self._neighbours.values()):
            wanted = [channel for channel in channels if neighbour.cares(channel)]
            if wanted:
                neighbour.unsent.update(dict.fromkeys(wanted))
                self._send(neighbour)
        self._ears.hear(channels)

    def _look_around(self) -> None:
        """Read the directory again only where it changed, or changed too recently to be sure."""
        changed_ns = self._place.changed_ns()
        if changed_ns == self._seen_ns:
            return
        found = self._place.neighbours(besides=self._name)
        self._neighbours = {name: self._known(name, patterns) for name, patterns in found.items()}
        settled = self._clock.now_ms() - changed_ns // 1_000_000 > _RACY_MS
        self._seen_ns = changed_ns if settled else -1

    def _known(self, name: str, patterns: frozenset[str]) -> _Neighbour:
        prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
        neighbour = _Neighbour(name, patterns, prefixes)
        if (before := self._neighbours.get(name)) is not None:
            neighbour.unsent, neighbour.tries = before.unsent, before.tries
        return neighbour

    def _send(self, neighbour: _Neighbour) -> None:
        for payload in bundled(neighbour.unsent, _DATAGRAM_BYTES):
            try:
                self._socket.sendto(payload, self._place.address(f"{neighbour.name}.sock"))
            except BlockingIOError:
                self._retry_soon(neighbour)
                return
            except OSError as error:
                neighbour.unsent.clear()
                if error.errno in _GONE:
                    self._forget(neighbour)
                return
        neighbour.unsent.clear()
        neighbour.tries = 0

    def _retry_soon(self, neighbour: _Neighbour) -> None:
        """A full queue means that the other is busy or frozen: try a few times, then let its scan find out."""
        neighbour.tries += 1
        if neighbour.tries > _RETRIES:
            neighbour.unsent.clear()
            neighbour.tries = 0
        else:
            self._loop.call_later(_RETRY_SECONDS * neighbour.tries, self._retry, neighbour)

    def _retry(self, neighbour: _Neighbour) -> None:
        current = self._neighbours.get(neighbour.name)
        if current is not None and current.unsent and not self._closed:
            self._send(current)

    def _forget(self, neighbour: _Neighbour) -> None:
        self._neighbours.pop(neighbour.name, None)
        self._place.remove(neighbour.name)

    def _receive(self) -> None:
        channels: dict[str, None] = {}
        with suppress(BlockingIOError, InterruptedError):
            while True:
                payload = self._socket.recv(_DATAGRAM_BYTES * 2)
                channels.update(dict.fromkeys(payload.decode(errors="replace").split("\n")))
        if self._hints:
            self._ears.hear(channels)


def hints_enabled() -> bool:
    return os.environ.get("NERVE_HINTS", "on").lower() not in {"off", "0", "false", "no"}


def bundled(channels: Iterable[str], bytes_max: int) -> list[bytes]:
    """A line each, in as few payloads of `bytes_max` as they take; one that is longer stands alone."""
    payloads: list[bytes] = []
    room = 0
    for channel in channels:
        line = channel.encode(errors="replace")
        if payloads and len(line) < room:
            payloads[-1] += b"\n" + line
            room -= len(line) + 1
        else:
            payloads.append(line)
            room = bytes_max - len(line)
    return payloads


@final
class BellPlace:
    """The folder of bells, reached by addresses that fit into a socket address however deep it lies."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=False, exist_ok=True)
        self._descriptor: int | None = None
        self._folder = folder
        if len(os.fsencode(folder)) + 40 <= _SUN_PATH_BYTES:
            self._prefix = f"{folder}/"
        elif sys.platform == "linux" and Path("/proc/self/fd").is_dir():
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._prefix = f"/proc/self/fd/{self._descriptor}/"
        else:
            self._folder = _short_twin(folder)
            self._prefix = f"{self._folder}/"

    def address(self, file_name: str) -> str:
        return self._prefix + file_name

    def changed_ns(self) -> int:
        try:
            return os.stat(
                self._folder if self._descriptor is None else self._descriptor
            ).st_mtime_ns
        except OSError:
            return -2

    def write_ears(self, name: str, patterns: Iterable[str]) -> None:
        temporary = self._folder / f"{name}.new"
        temporary.write_text("\n".join(sorted(patterns)), encoding="utf-8")
        temporary.replace(self._folder / f"{name}.ears")

    def neighbours(self, *, besides: str) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                name, _, suffix = entry.name.rpartition(".")
                if suffix == "ears" and name != besides:
                    with suppress(OSError):
                        text = Path(entry.path).read_text(encoding="utf-8")
                        found[name] = frozenset(filter(None, text.split("\n")))
        return found

    def sweep(self) -> None:
        """Remove what dead processes left: nobody answers at their sockets."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            for entry in list(os.scandir(self._folder)):
                name, _, suffix = entry.name.rpartition(".")
                if suffix == "sock":
                    try:
                        probe.connect(self.address(entry.name))
                    except OSError as error:
                        if error.errno in _GONE:
                            self.remove(name)

    def remove(self, name: str) -> None:
        for suffix in ("sock", "ears", "new"):
            with suppress(OSError):
                (self._folder / f"{name}.{suffix}").unlink()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _short_twin(folder: Path) -> Path:
    """A folder with a short name that every process derives alike from the real one."""
    status = folder.stat()
    owner = os.getuid()
    twin = Path(tempfile.gettempdir()) / f"nerve-{owner}-{status.st_dev:x}-{status.st_ino:x}"
    twin.mkdir(mode=0o700, exist_ok=True)
    if twin.stat().st_uid != owner:
        raise PermissionError(f"{twin} belongs to another user; remove it or use a shorter path")
    return twin
