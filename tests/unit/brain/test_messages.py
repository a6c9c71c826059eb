"""What a Brain says again, and to whom the answer goes."""

from dataclasses import replace

import pytest

from nerve.brain.tools.messages import Messages
from nerve.protocol.commands import KnownLedger, StartCommand
from nerve.protocol.envelope import open_envelope
from nerve.protocol.identity import Origin, ThreadKey
from nerve.protocol.updates import LedgerMark
from support.brain_cell import catalog

NOW = 1_700_000_000_000
HERE = Messages(deployment="local", cell="cell-1", admit_within_ms=1000, seat="aaaaaaaaaaaaaaaa")


def command() -> bytes:
    row = HERE.start(
        catalog().get("echo"),
        thread=ThreadKey("acme", "s", "t"),
        turn="t01m8sd919pfkq8jkf8j5s9b786",
        execution="t01m8sd919pfkq8jkf8j5s9b786.x1",
        call_id="c1",
        arguments={"text": "x"},
        origin=Origin(run="r1", step="s1"),
        now=NOW,
    )
    return row.envelope


def body(raw: bytes) -> StartCommand:
    found = open_envelope(raw).body
    assert isinstance(found, StartCommand)
    return found


@pytest.mark.rule(24)
def test_a_command_is_repeated_as_it_was() -> None:
    first = command()
    again = HERE.repeat(first, body(first).execution, "hands")
    assert again.envelope == first


@pytest.mark.rule(24)
def test_a_ledger_that_was_moved_repeats_a_command_so_that_it_hears_the_answer() -> None:
    first = command()
    moved = replace(HERE, seat="bbbbbbbbbbbbbbbb")
    again = moved.repeat(first, body(first).execution, "hands")
    assert body(again.envelope).reply_to == moved.reply_to
    same = {"reply_to": body(first).reply_to}
    assert body(again.envelope).model_copy(update=same) == body(first), "all else is as it was"


@pytest.mark.rule(24)
def test_so_does_one_that_is_renewed_or_meant_for_another_ledger() -> None:
    moved = replace(HERE, seat="bbbbbbbbbbbbbbbb")
    mark = LedgerMark(ledger_id="new", epoch=1, position=1)
    seen = KnownLedger(ledger_id="old", epoch=1)
    named = moved.for_another(command(), mark, seen, now=NOW)
    assert named is not None
    for row in (named, moved.renew(command(), now=NOW)):
        assert body(row.envelope).reply_to == moved.reply_to
