"""Reserved events have checked payloads, custom ones a namespace, and cursors a single form."""

from typing import Any

import pytest

from nerve.protocol.errors import BadInput, InvalidName, NerveError, UnknownField
from nerve.protocol.events import (
    PAYLOADS,
    EventType,
    PreviewType,
    PublicEvent,
    check_event,
    check_type,
    cursor_of,
    is_custom,
    sequence_of,
)

MESSAGE = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}


def test_every_reserved_type_has_a_payload() -> None:
    assert set(PAYLOADS) == set(EventType)
    assert not set(EventType) & set(PreviewType)


@pytest.mark.capability("F7.2")
@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("session.created", {"agent": "weather"}),
        ("thread.created", {"name": "main"}),
        ("turn.queued", {"request_id": "r1"}),
        ("message.user", {"message_id": "m0", "message": MESSAGE, "input_kind": "submit"}),
        ("tool.requested", {"call_id": "c1", "tool": "forecast", "kind": "remote"}),
        ("session.closed", {}),
    ],
)
def test_a_reserved_payload_that_fits_is_taken_as_it_is(type: str, payload: dict[str, Any]) -> None:
    assert check_event(type, payload) == payload


@pytest.mark.capability("F7.2")
@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("session.created", {}),
        ("turn.queued", {"request_id": 3}),
        ("message.completed", {"message_id": "m", "message": {"role": "x", "parts": []}}),
        ("tool.received", {"state": "DONE"}),
        ("turn.started", {"checkpoint": "private"}),
        ("session.closed", {"reason": "\x00"}),
    ],
)
def test_a_reserved_payload_that_says_something_else_is_refused(
    type: str, payload: dict[str, Any]
) -> None:
    with pytest.raises(NerveError):
        check_event(type, payload)


def test_no_reserved_payload_has_room_for_private_state() -> None:
    with pytest.raises(UnknownField, match="reasoning"):
        check_event("message.completed", {"message_id": "m", "message": MESSAGE, "reasoning": "x"})


@pytest.mark.capability("F7.1")
@pytest.mark.parametrize("type", ["x.acme.order", "x.acme-2.order.shipped", "x.a.b"])
def test_a_custom_event_carries_any_json(type: str) -> None:
    assert is_custom(check_type(type))
    assert check_event(type, {"any": [1.0, None]}) == {"any": [1, None]}


@pytest.mark.capability("F7.1")
@pytest.mark.parametrize("type", ["x.acme", "x..a", "x.A.b", "order.shipped", "", "x.a.b\n", "x"])
def test_other_names_are_refused(type: str) -> None:
    with pytest.raises(InvalidName):
        check_event(type, {})


def test_cursors_are_read_back_and_foreign_ones_refused() -> None:
    assert [sequence_of(cursor_of(n)) for n in (0, 1, 10**9)] == [0, 1, 10**9]
    assert sequence_of(None) == 0
    for cursor in ("", "1", "e-1", "e01", "e1\n", "e" + "9" * 30):
        with pytest.raises(BadInput, match="cursor"):
            sequence_of(cursor)


def test_an_event_knows_its_cursor() -> None:
    event = PublicEvent(sequence=7, type="session.closed", namespace="acme", session="s", at=1)
    assert event.cursor == cursor_of(7)
