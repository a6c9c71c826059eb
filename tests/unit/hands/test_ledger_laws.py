"""Admission, starts and ends in the ledger, one law at a time and over two connections."""

import asyncio
from dataclasses import replace

import pytest

from nerve.hands.ledger.admit import Admission, Bar, bar
from nerve.hands.ledger.answers import observations
from nerve.hands.ledger.cancel import Cancelled
from nerve.hands.ledger.progress import Progress, report_progress
from nerve.hands.ledger.release import Abandon, abandon
from nerve.hands.ledger.start import Lane, Start, StartVerdict, Want, start
from nerve.protocol.execution import Effect, ExecutionState
from support.hands_ledger import Book, unhindered

S = ExecutionState


def want(book: Book, tool: str = "once", count: int = 10) -> Start:
    binding = book.asker.catalog.get(tool)
    wanted = Want(
        lane=Lane(binding.digest),
        repeatable=binding.powers.idempotent_start,
        count=count,
    )
    return Start(host=book.host, wants=[wanted], speaker=book.speaker, now=book.now)


async def start_waiting(book: Book, tool: str = "once", count: int = 10) -> StartVerdict:
    return await book.ledger.commit(start, want(book, tool, count))


@pytest.mark.capability("D3.1")
async def test_a_command_becomes_an_execution_and_starts_where_a_slot_is_reserved(
    book: Book,
) -> None:
    started, waiting = book.command(start=True), book.command(start=False)
    verdicts = await book.admit(started, waiting)
    assert [each.admission for each in verdicts] == [Admission.STARTED, Admission.ADMITTED]
    first, second = await book.row(started.id), await book.row(waiting.id)
    assert (first["state"], first["host"], first["attempt"], first["token"]) == (
        S.STARTED,
        book.host,
        1,
        1,
    )
    assert (second["state"], second["host"], second["attempt"]) == (S.ADMITTED, None, 0)


@pytest.mark.law(6)
@pytest.mark.capability("D7.2")
async def test_a_repeated_command_finds_its_row_and_changes_nothing(book: Book) -> None:
    command = book.command()
    await book.admit(command)
    before = dict(await book.row(command.id))
    assert [v.admission for v in await book.admit(command, command)] == [Admission.KNOWN] * 2
    assert dict(await book.row(command.id)) == before


async def test_two_copies_of_a_command_in_one_bundle_are_one_execution(book: Book) -> None:
    command = book.command()
    verdicts = await book.admit(command, replace(command, start=False))
    assert [each.admission for each in verdicts] == [Admission.STARTED, Admission.KNOWN]


@pytest.mark.rule(12)
@pytest.mark.law(6)
async def test_the_same_execution_with_another_request_is_a_conflict(book: Book) -> None:
    command = book.command()
    await book.admit(command)
    forged = replace(command, request_digest="sha256:" + "0" * 64)
    assert (await book.admit(forged))[0].admission is Admission.CONFLICT


@pytest.mark.rule(17)
async def test_a_command_that_came_too_late_is_not_admitted_and_its_renewal_is(
    book: Book,
) -> None:
    late = book.command(admit_before=book.now - 1)
    assert (await book.admit(late))[0].admission is Admission.EXPIRED
    renewed = replace(late, admit_before=book.now + 1000)
    assert (await book.admit(renewed))[0].admission is Admission.STARTED
    assert (await book.admit(late))[0].admission is Admission.KNOWN


@pytest.mark.capability("D14.1")
async def test_a_refused_command_stays_refused_until_it_is_renewed(book: Book) -> None:
    command = book.command()
    unit = Bar(execution=command.id, until=command.admit_before, code="unauthorized", reason="no")
    assert await book.ledger.commit(bar, unit) is True
    verdict = (await book.admit(command))[0]
    assert (verdict.admission, verdict.code) == (Admission.BARRED, "unauthorized")
    renewed = replace(command, admit_before=command.admit_before + 1)
    assert (await book.admit(renewed))[0].admission is Admission.STARTED


@pytest.mark.rule(1)
@pytest.mark.law(3)
async def test_a_released_host_is_given_nothing(book: Book, other: Book) -> None:
    await other.release(book.host)
    command = book.command()
    assert (await book.admit(command))[0].admission is Admission.ADMITTED
    assert (await book.row(command.id))["host"] is None
    assert (await start_waiting(book)).started == ()
    taken = await start_waiting(other)
    assert [each.id for each in taken.started] == [command.id]


@pytest.mark.rule(9)
async def test_two_hosts_that_race_for_one_command_admit_it_once(book: Book, other: Book) -> None:
    commands = [book.command() for _ in range(20)]
    mine, theirs = await asyncio.gather(book.admit(*commands), other.admit(*commands))
    for one, two in zip(mine, theirs, strict=True):
        assert {one.admission, two.admission} == {Admission.STARTED, Admission.KNOWN}


@pytest.mark.rule(9)
@pytest.mark.report("U12")
async def test_two_hosts_that_race_for_what_waits_start_each_execution_once(
    book: Book, other: Book
) -> None:
    commands = [book.command(start=False) for _ in range(30)]
    await book.admit(*commands)
    rounds = [start_waiting(host, count=4) for _ in range(5) for host in (book, other)]
    taken = [each.id for verdict in await asyncio.gather(*rounds) for each in verdict.started]
    assert sorted(taken) == sorted(command.id for command in commands)


async def test_the_oldest_execution_of_a_binding_starts_first(book: Book) -> None:
    first = book.command(start=False)
    await book.admit(first)
    await book.clock.advance(1)
    await book.admit(*(book.command(start=False) for _ in range(3)))
    verdict = await start_waiting(book, count=1)
    assert [each.id for each in verdict.started] == [first.id]
    assert verdict.more == {Lane(first.binding_digest): True}


@pytest.mark.law(2)
@pytest.mark.capability("D4.1")
async def test_an_end_stands_with_its_update_and_its_message_in_one_transaction(
    book: Book,
) -> None:
    command = book.command()
    await book.admit(command)
    assert await book.finish(command.id) == 1
    [update] = await book.updates(command.id)
    assert (update.state, update.sequence, update.covers_admission) == (S.SUCCEEDED, 1, True)
    assert update.result is not None and update.result.value == "done"
    assert update.ledger == book.speaker.mark(update.ledger.position)
    assert len(await book.outbox()) == 1


@pytest.mark.rule(12)
async def test_every_update_carries_a_higher_position_of_the_ledger(book: Book) -> None:
    commands = [book.command() for _ in range(3)]
    await book.admit(*commands)
    for command in commands:
        await book.finish(command.id)
    marks = [(await book.updates(command.id))[0].ledger for command in commands]
    assert marks[1].continues(marks[0]) and marks[2].continues(marks[1])
    assert not marks[0].continues(marks[2])


@pytest.mark.rule(2)
@pytest.mark.rule(21)
@pytest.mark.report("U14")
async def test_a_fenced_owners_result_becomes_an_observation_and_nothing_else(
    book: Book, other: Book
) -> None:
    command = book.command()
    await book.admit(command)
    await other.release(book.host)
    assert await book.finish(command.id) is None
    row = await book.row(command.id)
    assert (row["state"], row["code"]) == (S.UNKNOWN, "host_lost")
    seen = await book.ledger.read(lambda tx: observations(tx, command.id))
    assert [(each["source"], each["state"]) for each in seen] == [("fenced_owner", S.SUCCEEDED)]
    assert [update.state for update in await book.updates(command.id)] == [S.UNKNOWN]


async def test_an_end_that_is_committed_again_is_the_same_end(book: Book) -> None:
    command = book.command()
    await book.admit(command)
    assert [await book.finish(command.id), await book.finish(command.id)] == [1, 1]
    assert len(await book.updates(command.id)) == 1
    assert await book.ledger.read(lambda tx: observations(tx, command.id)) == []


@pytest.mark.rule(1)
async def test_releasing_a_host_frees_what_may_repeat_and_leaves_what_waits(
    book: Book, other: Book
) -> None:
    repeatable, waiting = book.command("again"), book.command(start=False)
    await book.admit(repeatable, waiting)
    assert [await other.release(book.host), await other.release(book.host)] == [True, False]
    row = await book.row(repeatable.id)
    assert (row["state"], row["host"], row["token"]) == (S.RECOVERING, None, 2)
    assert (await book.row(waiting.id))["state"] == S.ADMITTED
    [again] = (await start_waiting(other, "again")).started
    assert (again.id, again.attempt, again.token) == (repeatable.id, 2, 3)
    assert await other.finish(repeatable.id, token=3) == 1


async def test_only_the_owner_can_abandon_an_execution(book: Book, other: Book) -> None:
    command = book.command()
    await book.admit(command)

    async def give_up(by: Book) -> bool:
        unit = Abandon(
            id=command.id,
            host=by.host,
            token=1,
            entered=True,
            speaker=by.speaker,
            now=by.now,
        )
        return await by.ledger.commit(abandon, unit)

    assert [await give_up(other), await give_up(book), await give_up(book)] == [False, True, False]
    assert (await book.row(command.id))["state"] == S.UNKNOWN


@pytest.mark.capability("D6.1")
@pytest.mark.report("U99")
async def test_a_cancel_before_the_command_leaves_a_tombstone(book: Book) -> None:
    command = book.command()
    assert await book.cancel(command.id) is Cancelled.CONFIRMED
    assert (await book.admit(command))[0].admission is Admission.TOMBSTONE
    [update] = await book.updates(command.id)
    assert (update.state, update.effect, update.attempt) == (S.CANCELLED, Effect.NONE, 0)
    assert (await start_waiting(book)).started == []


@pytest.mark.capability("D6.1")
async def test_a_cancel_of_what_waits_ends_it_without_effect(book: Book) -> None:
    command = book.command(start=False)
    await book.admit(command)
    assert await book.cancel(command.id) is Cancelled.CONFIRMED
    assert (await start_waiting(book)).started == []
    assert (await book.row(command.id))["state"] == S.CANCELLED


@pytest.mark.capability("D6.2")
@pytest.mark.law(11)
async def test_a_cancel_of_what_runs_is_requested_and_reported_but_not_confirmed(
    book: Book,
) -> None:
    command = book.command()
    await book.admit(command)
    found = [await book.cancel(command.id), await book.cancel(command.id)]
    assert found == [Cancelled.REQUESTED, Cancelled.ALREADY_REQUESTED]
    await book.finish(command.id)
    assert await book.cancel(command.id) is Cancelled.ENDED
    updates = await book.updates(command.id)
    assert [(each.sequence, each.state, each.cancel_requested) for each in updates] == [
        (1, S.STARTED, True),
        (2, S.SUCCEEDED, True),
    ]


@pytest.mark.rule(9)
@pytest.mark.report("U99")
async def test_cancel_and_start_race_to_one_of_two_honest_ends(book: Book, other: Book) -> None:
    for _ in range(10):
        command = book.command(start=False)
        await book.admit(command)
        cancelled, taken = await asyncio.gather(
            book.cancel(command.id), start_waiting(other, count=1)
        )
        state = (await book.row(command.id))["state"]
        if cancelled is Cancelled.CONFIRMED:
            assert (taken.started, state) == ([], S.CANCELLED)
        else:
            assert (cancelled, state) == (Cancelled.REQUESTED, S.STARTED)
            await other.finish(command.id)


@pytest.mark.rule(14)
async def test_progress_is_reported_once_per_state_and_not_after_the_end(book: Book) -> None:
    running, ended = book.command(), book.command()
    await book.admit(running, ended)
    await book.finish(ended.id)
    unit = Progress(
        executions=[running.id, ended.id],
        speaker=book.speaker,
        obstacle=unhindered,
        now=book.now,
    )
    for _ in range(2):
        assert await book.ledger.commit(report_progress, unit) == [running.id]
    assert [each.state for each in await book.updates(running.id)] == [S.STARTED]
    await book.finish(running.id)
    last = (await book.updates(running.id))[-1]
    assert (last.sequence, last.covers_admission) == (2, False)


@pytest.mark.rule(12)
async def test_a_restored_ledger_does_not_start_what_it_says_was_only_admitted(
    book: Book,
) -> None:
    plain, repeatable = book.command(start=False), book.command("again", start=False)
    await book.admit(plain, repeatable)
    book.speaker.epoch += 1
    assert (await start_waiting(book)).started == []
    assert len((await start_waiting(book, "again")).started) == 1
    row = await book.row(plain.id)
    assert (row["state"], row["code"]) == (S.UNKNOWN, "ledger_restored")


@pytest.mark.rule(12)
async def test_a_command_meant_for_a_ledger_that_this_one_replaced_is_unknown(book: Book) -> None:
    before = book.ledger.identity.created_at - 1
    lost = book.command(knows_us=False, issued_at=before)
    safe = book.command("again", knows_us=False, issued_at=before)
    later = book.command(knows_us=False, issued_at=before + 1)
    first = book.command(knows_us=None, issued_at=before)
    verdicts = await book.admit(lost, safe, later, first)
    assert [each.admission for each in verdicts] == [
        Admission.DOUBTFUL,
        Admission.STARTED,
        Admission.STARTED,
        Admission.STARTED,
    ]
    [update] = await book.updates(lost.id)
    assert (update.state, update.code) == (S.UNKNOWN, "ledger_replaced")
    assert (await book.admit(lost))[0].admission is Admission.KNOWN


async def test_what_its_owner_never_entered_waits_for_another_start(book: Book) -> None:
    command = book.command()
    await book.admit(command)
    unit = Abandon(
        id=command.id, host=book.host, token=1, entered=False, speaker=book.speaker, now=book.now
    )
    assert await book.ledger.commit(abandon, unit) is True
    [again] = (await start_waiting(book)).started
    assert (again.id, again.attempt, again.token) == (command.id, 2, 3)
