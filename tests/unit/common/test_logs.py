"""Log lines: structured, without secrets, and at most one a second for a cause."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from nerve.common import logs
from nerve.common.clock import VirtualClock


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    text = io.StringIO()
    yield text
    root = logging.getLogger("nerve")
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.propagate = True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_carries_message_fields_and_context(stream: io.StringIO) -> None:
    logs.configure(json_lines=True, stream=stream)
    with logs.context(turn="t1"):
        logs.get_log("nerve.test").info("turn moved", step=3)
    [line] = lines(stream)
    seen = {key: line[key] for key in ("level", "logger", "message", "turn", "step")}
    expected = {"level": "info", "logger": "nerve.test", "message": "turn moved"}
    assert {**expected, "turn": "t1", "step": 3} == seen


async def test_a_flood_of_one_cause_is_one_line_a_second_and_counted(stream: io.StringIO) -> None:
    clock = VirtualClock()
    logs.configure(json_lines=True, stream=stream, clock=clock)
    log = logs.get_log("nerve.test")
    for _ in range(500):
        log.warning("broker is away", cause="amqp")
    log.warning("broker is away", cause="another")
    await clock.advance(1)
    log.warning("broker is away", cause="amqp")
    assert [None, None, 499] == [line.get("held_back") for line in lines(stream)]


def test_a_line_that_must_be_seen_passes_the_limit(stream: io.StringIO) -> None:
    logs.configure(json_lines=True, stream=stream, clock=VirtualClock())
    for number in range(3):
        logs.get_log("nerve.test").info("killed", pid=number, always=True)
    assert [0, 1, 2] == [line["pid"] for line in lines(stream)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp://user:pass@host/x", "amqp://user:***@host/x"),
        ("postgresql://u:p%40ss@h:5432/db?sslmode=on", "postgresql://u:***@h:5432/db?sslmode=on"),
        ("https://h/x?token=abc&page=2", "https://h/x?token=***&page=2"),
        ("api_key=sk-123456 model=m", "api_key=*** model=m"),
        ('{"password": "hunter2", "a": 1}', '{"password": "***", "a": 1}'),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("https://h/plain/path:80", "https://h/plain/path:80"),
    ],
)
def test_secrets_are_masked(text: str, expected: str) -> None:
    assert expected == logs.redact(text)


def test_registered_secrets_are_masked_in_fields_and_tracebacks(stream: io.StringIO) -> None:
    logs.configure(json_lines=True, stream=stream)
    logs.register_secret('va"lue-of-a-secret')
    try:
        raise RuntimeError('no access with va"lue-of-a-secret')
    except RuntimeError as error:
        logs.get_log("nerve.test").error("call failed", error=error, given='va"lue-of-a-secret')
    assert "lue-of-a-secret" not in stream.getvalue()
    [line] = lines(stream)
    assert "RuntimeError" in str(line["error"])


def test_the_human_form_is_one_readable_line(stream: io.StringIO) -> None:
    logs.configure(stream=stream)
    logs.get_log("nerve.brain.x").info("turn ended", outcome="done well", turn="t1")
    text = stream.getvalue()
    assert text.endswith('INFO    brain.x: turn ended  outcome="done well" turn=t1\n')


def test_levels_below_are_dropped(stream: io.StringIO) -> None:
    logs.configure(level="warning", stream=stream)
    logs.get_log("nerve.test").info("nothing")
    assert "" == stream.getvalue()
