"""`nerve submit`: admit a Turn under a request id that is told first, and watch it to its end."""

import base64
import hashlib
import mimetypes
import sys
import uuid
from pathlib import Path
from typing import Any

from nerve.brain.handles import Turn
from nerve.common.clock import SystemClock, within
from nerve.common.settings import Settings
from nerve.deploy.client import Client, client, has_brain, nearest_state, place_option
from nerve.deploy.output import Console
from nerve.deploy.watching import ended, tell_obstacles, watch
from nerve.protocol.errors import BadInput, Timeout, UnknownAgent
from nerve.protocol.identity import SessionKey, check_name, check_request_id

NAMESPACE = "local"
FILE_BYTES_MAX = 512 * 1024
ADMITTED = 0
STILL_WAITING = 5
LOOK_SECONDS = 0.5


async def submit(
    agent: str,
    text: str | None,
    *,
    directory: Path,
    console: Console,
    settings: Settings,
    request_id: str | None = None,
    session: str | None = None,
    thread: str | None = None,
    version: str | None = None,
    files: tuple[Path, ...] = (),
    wait: bool = False,
    timeout: float | None = None,
) -> int:
    """Submit; with `wait` return the exit code of the Turn's end."""
    check_name(agent, "agent")
    content = content_of(text, files)
    request = check_request_id(request_id) if request_id is not None else f"r-{uuid.uuid4().hex}"
    key = session_key(session, request)
    if request_id is None:
        console.say("request", f"Request id: {request}", request_id=request)
    try:
        async with within(SystemClock(), timeout if timeout is not None else 1e9):
            if wait:
                await _until_there_is_a_brain(agent, directory, console, settings)
            async with client(directory, settings) as at:
                turn = await _admit(at, key, agent, version, thread, request, content)
                admitted = {"turn": turn.id, "session": key.id, "request_id": request}
                if not wait:
                    if not console.json_lines:
                        await tell_obstacles(at, turn, console)
                    console.answer(admitted, turn.id)
                    return ADMITTED
                console.say("admitted", f"Turn {turn.id} in the session {key}.", **admitted)
                await watch(at, turn, console)
                return await ended(turn, console)
    except TimeoutError:
        raise Timeout(
            f"the request {request} has no result after {timeout:g} s; nothing was cancelled",
            where="--timeout",
            next_step="Run the same command with the same request id to wait again,"
            f" here: --request-id {request}",
            identities={"request_id": request, "session": key.id},
        ) from None


def session_key(session: str | None, request: str) -> SessionKey:
    """The named Session, "namespace/name" or a name alone; without one a Session of this request."""
    if session is None:
        # Derived, so that a repeated request finds its Turn again.
        own = f"s-{hashlib.sha256(request.encode()).hexdigest()[:16]}"
        return SessionKey(NAMESPACE, own)
    return SessionKey.parse(session) if "/" in session else SessionKey(NAMESPACE, session)


def content_of(text: str | None, files: tuple[Path, ...]) -> Any:
    """A text, or parts where there are files. Raises BadInput."""
    parts: list[Any] = [] if text is None else [text]
    parts += [_part(path) for path in files]
    if not parts:
        raise BadInput(
            "there is nothing to submit", where="TEXT", next_step="Give a text, --file, or both"
        )
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _part(path: Path) -> Any:
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}", where="--file", next_step="Name another"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise BadInput(
            f"{path} has {len(data):,} bytes; the limit is {FILE_BYTES_MAX:,}",
            where="--file",
            next_step="Send less, or a URL to it",
        )
    kind = mimetypes.guess_type(path.name)[0] or ""
    family = kind.partition("/")[0]
    if family in ("image", "audio", "video"):
        encoded = base64.b64encode(data).decode()
        return {"type": family, "media_type": kind, "base64": encoded}
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(
            f"{path} is neither text in UTF-8 nor an image, audio or video",
            where="--file",
            next_step="Convert it, or name a file of such a kind",
        ) from None


async def _admit(
    at: Client,
    key: SessionKey,
    agent: str,
    version: str | None,
    thread: str | None,
    request: str,
    content: Any,
) -> Turn:
    try:
        session = await at.runtime.session(key, agent, version=version)
    except UnknownAgent as error:
        raise await unknown_agent(at, agent, error) from None
    if thread is None:
        return await session.submit(request, content)
    opened = await session.open_thread(thread, agent=agent, version=version)
    return await opened.submit(request, content)


async def unknown_agent(at: Client, agent: str, error: UnknownAgent) -> UnknownAgent:
    """Names the nearest agent that a host here has offered."""
    import difflib

    known = await at.agents()
    if agent in known:
        return error
    near = difflib.get_close_matches(agent, known, n=1, cutoff=0.5)
    step = f"Did you mean {near[0]}?" if near else error.next_step
    return UnknownAgent(
        f"no host of {at.where} has offered an agent {agent}",
        where="AGENT",
        next_step=step,
        details={"known": known},
    )


async def _until_there_is_a_brain(
    agent: str, directory: Path, console: Console, settings: Settings
) -> None:
    """Where no host has ever run, say at once what starts one, and wait for it."""
    clock = SystemClock()
    told = False
    while not await _offers_anything(directory, settings):
        if not told:
            told = True
            near = None if has_marker(directory) else nearest_state(directory)
            hint = f" (There is state in {near}: --dir {near}?)" if near else ""
            console.say(
                "no_host",
                f"No host has run on {directory} yet, so nobody knows the agent {agent}:"
                f" `nerve dev app.py{place_option(directory)}` starts one. Waiting for it.{hint}",
                reason="NO_HOST",
            )
        await clock.sleep(LOOK_SECONDS)


async def _offers_anything(directory: Path, settings: Settings) -> bool:
    if not settings.database and (not has_marker(directory) or not has_brain(directory)):
        return False
    async with client(directory, settings) as at:
        return bool(await at.agents())


def has_marker(directory: Path) -> bool:
    from nerve.common.place import MARKER

    return (directory / MARKER).exists()
