"""What two replicas of a pool do to one execution at the same moment, each over a connection of its own."""

import asyncio
from functools import partial

import pytest

from nerve.hands.ledger.admit import Admission
from nerve.hands.ledger.answers import observations
from nerve.hands.ledger.cancel import Cancelled
from nerve.protocol.execution import ExecutionState
from support.hands_ledger import Book
from support.waiting import race

S = ExecutionState
COUNT = 40


@pytest.mark.rule(1)
@pytest.mark.rule(9)
@pytest.mark.rule(21)
@pytest.mark.report("U14")
async def test_a_release_against_late_results_records_each_as_an_end_or_as_evidence(
    book: Book, other: Book
) -> None:
    commands = [book.command() for _ in range(COUNT)]
    await book.admit(*commands)
    early = [asyncio.ensure_future(book.finish(each.id)) for each in commands[: COUNT // 2]]
    releasing = asyncio.ensure_future(other.release(book.host))
    late = [asyncio.ensure_future(book.finish(each.id)) for each in commands[COUNT // 2 :]]
    sequences = await asyncio.gather(*early, *late)
    assert await releasing
    for command, sequence in zip(commands, sequences, strict=True):
        seen = await book.ledger.read(partial(observations, execution=command.id))
        row, told = await book.row(command.id), await book.updates(command.id)
        if sequence is None:
            assert (row["state"], row["code"]) == (S.UNKNOWN, "host_lost")
            assert [each["source"] for each in seen] == ["fenced_owner"]
        else:
            assert (row["state"], sequence, seen) == (S.SUCCEEDED, 1, [])
        assert [update.state for update in told] == [row["state"]], "one end is told, once"


@pytest.mark.rule(9)
@pytest.mark.report("U99")
async def test_a_cancel_against_the_command_ends_as_a_tombstone_or_as_a_wish(
    book: Book, other: Book
) -> None:
    for round in range(COUNT):
        command = book.command()
        cancelled, (verdict,) = await race(
            other.cancel(command.id), book.admit(command), first=round % 2
        )
        state = (await book.row(command.id))["state"]
        if verdict.admission is Admission.TOMBSTONE:
            assert (cancelled, state) == (Cancelled.CONFIRMED, S.CANCELLED)
        else:
            assert (verdict.admission, cancelled) == (Admission.STARTED, Cancelled.REQUESTED)
            assert state == S.STARTED


@pytest.mark.rule(9)
@pytest.mark.report("U66", "U99")
async def test_a_cancel_against_the_result_never_takes_the_result_away(
    book: Book, other: Book
) -> None:
    for round in range(COUNT):
        command = book.command()
        await book.admit(command)
        cancelled, sequence = await race(
            other.cancel(command.id), book.finish(command.id), first=round % 2
        )
        assert cancelled in (Cancelled.REQUESTED, Cancelled.ENDED)
        told = await book.updates(command.id)
        assert [each.state for each in told][-1] is S.SUCCEEDED
        assert sequence == len(told) == (2 if cancelled is Cancelled.REQUESTED else 1)
