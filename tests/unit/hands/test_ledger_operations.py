"""Reconciling UNKNOWN with evidence, bindings that nobody has, and what may be forgotten."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from nerve.common.sql import Tx, sql
from nerve.hands import ExecutionReconciliation, ExecutionStore
from nerve.hands.ledger.admit import Admission, Bar, bar
from nerve.hands.ledger.answers import present
from nerve.hands.ledger.missing import Missing, fail_missing
from nerve.hands.ledger.settle import Settled, anything_to_forget, forget, settle
from nerve.protocol.errors import (
    BadInput,
    Fenced,
    NerveError,
    RequestConflict,
    Unauthorized,
    UnknownExecution,
    WrongState,
)
from nerve.protocol.execution import Effect, ExecutionState, value_result
from support.hands_ledger import Book

S = ExecutionState
OFFER = sql("update host set offers = :offers where id = :id")


def store(book: Book, authorize: Callable[[str, str], bool] | None = None) -> ExecutionStore:
    return ExecutionStore(book.ledger, book.speaker, clock=book.clock, authorize=authorize)


def succeeded(request_id: str = "fix-1", **changes: Any) -> ExecutionReconciliation:
    fields: dict[str, Any] = {
        "request_id": request_id,
        "operator": "ada",
        "evidence": "invoice 42 exists at the bank",
        "state": S.SUCCEEDED,
        "result": value_result("paid"),
        "owner_gone": True,
    }
    return ExecutionReconciliation(**(fields | changes))


@pytest.fixture
async def unknown(book: Book, other: Book) -> str:
    """An execution whose host was released while its tool ran."""
    command = book.command()
    await book.admit(command)
    await other.release(book.host)
    return command.id


@pytest.mark.capability("D8.2")
async def test_receipt_and_ordinary_update_leave_in_one_transaction(
    other: Book, unknown: str
) -> None:
    operations = store(other)
    assert await operations.reconciliation(unknown, "fix-1") is None
    work = await operations.claim(unknown, "ada")
    assert (work.view.tool, work.view.arguments) == ("once", {"text": "x"})
    commits = other.ledger.commits
    receipt = await operations.reconcile(work, succeeded())
    assert other.ledger.commits == commits + 1
    last = (await other.updates(unknown))[-1]
    assert (last.state, last.effect, last.sequence, last.code) == (
        S.SUCCEEDED,
        Effect.COMPLETED,
        2,
        "reconciled",
    )
    assert last.result is not None and last.result.value == "paid"
    assert (receipt.sequence, receipt.operator) == (2, "ada")
    assert len(await other.outbox()) == 2


@pytest.mark.capability("D8.5")
async def test_reconciling_again_with_one_request_id_is_reconciling_once(
    other: Book, unknown: str
) -> None:
    operations = store(other)
    work = await operations.claim(unknown, "ada")
    first = await operations.reconcile(work, succeeded())
    assert await operations.reconcile(work, succeeded()) == first
    assert await operations.reconciliation(unknown, "fix-1") == first
    with pytest.raises(RequestConflict, match="fix-1"):
        await operations.reconcile(work, succeeded(evidence="something else"))
    assert len(await other.updates(unknown)) == 2


@pytest.mark.capability("D8.5")
async def test_a_claim_is_a_lease_of_one_owner(other: Book, unknown: str) -> None:
    operations = store(other)
    ada = await operations.claim(unknown, "ada", lease_seconds=60)
    with pytest.raises(WrongState, match="being reconciled by ada"):
        await operations.claim(unknown, "bob")
    await other.clock.advance(61)
    with pytest.raises(Fenced):
        await operations.reconcile(ada, succeeded())
    bob = await operations.claim(unknown, "bob")
    with pytest.raises(Fenced):
        await operations.reconcile(ada, succeeded())
    await operations.reconcile(bob, succeeded())


@pytest.mark.capability("D8.3")
async def test_only_unknown_can_be_claimed(book: Book) -> None:
    command = book.command()
    await book.admit(command)
    with pytest.raises(WrongState, match="STARTED, not UNKNOWN"):
        await store(book).claim(command.id, "ada")
    with pytest.raises(UnknownExecution):
        await store(book).claim(book.command().id, "ada")


@pytest.mark.capability("D8.5")
async def test_an_operator_who_may_not_is_refused(other: Book, unknown: str) -> None:
    operations = store(other, authorize=lambda operator, execution: operator == "eve")
    work = await operations.claim(unknown, "ada")
    with pytest.raises(Unauthorized):
        await operations.reconcile(work, succeeded())


@pytest.mark.rule(5)
async def test_a_former_owner_that_may_still_run_must_be_confirmed_gone(
    other: Book, unknown: str
) -> None:
    operations = store(other)
    work = await operations.claim(unknown, "ada")
    assert work.owner_gone is False  # The released host is this very process.
    with pytest.raises(WrongState, match="not proven to be gone"):
        await operations.reconcile(work, succeeded(owner_gone=False))


@pytest.mark.capability("D8.6")
async def test_missing_output_is_closed_with_a_gap(other: Book, unknown: str) -> None:
    work = await store(other).claim(unknown, "ada")
    await store(other).reconcile(work, succeeded())
    [_, last] = await other.updates(unknown)
    assert last.result is not None and last.result.output is not None
    statement = sql("select kind, reason from output_page where execution = :id")

    async def pages(tx: Tx) -> list[tuple[str, str]]:
        return [(row["kind"], row["reason"]) for row in await tx.all(statement, id=unknown)]

    [(kind, reason)] = await other.ledger.read(pages)
    assert kind == "gap" and "is lost" in reason


@pytest.mark.rule(21)
async def test_two_operators_who_race_settle_it_once(other: Book, book: Book, unknown: str) -> None:
    async def settle_as(who: Book, owner: str) -> object:
        try:
            work = await store(who).claim(unknown, owner)
            return await store(who).reconcile(work, succeeded(owner))
        except NerveError as error:
            return error

    results = await asyncio.gather(settle_as(other, "ada"), settle_as(book, "bob"))
    assert sum(not isinstance(each, NerveError) for each in results) == 1
    assert len(await other.updates(unknown)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"evidence": "  "},
        {"evidence": "x" * 5000},
        {"evidence": "nul \x00"},
        {"request_id": "a\nb"},
        {"operator": "no such name!"},
    ],
)
async def test_bad_input_of_an_operator_is_refused_and_writes_nothing(
    other: Book, unknown: str, changes: dict[str, Any]
) -> None:
    work = await store(other).claim(unknown, "ada")
    with pytest.raises(BadInput):
        await store(other).reconcile(work, succeeded(**changes))
    assert (await other.row(unknown))["state"] == S.UNKNOWN


async def test_the_store_opens_on_a_directory_without_a_worker(
    tmp_path: Path,
) -> None:
    with pytest.raises(NerveError, match="no nerve state"):
        await ExecutionStore.open(tmp_path / "nothing")


async def offer(book: Book, tools: dict[str, str]) -> None:
    from nerve.common.sql import law

    @law("test.offer", keys=lambda unit: ())
    async def write(tx: Tx, unit: str) -> None:
        await tx.run(OFFER, id=book.host, offers=unit)

    await book.ledger.commit(write, orjson.dumps({"tools": tools}).decode())


def missing(book: Book, digest: str) -> Missing:
    return Missing(binding_digests=[digest], missing_ms=60_000, speaker=book.speaker, now=book.now)


@pytest.mark.rule(18)
@pytest.mark.capability("D1.3")
async def test_another_definition_on_every_live_host_is_a_mismatch_at_once(
    book: Book, other: Book
) -> None:
    command = book.command(start=False)
    await book.admit(command)
    for host in (book, other):
        await offer(host, {"once@1": "sha256:" + "1" * 64})
    assert await book.ledger.commit(fail_missing, missing(book, command.binding_digest)) == 1
    [update] = await book.updates(command.id)
    assert (update.state, update.effect, update.code) == (S.FAILED, Effect.NONE, "binding_mismatch")


@pytest.mark.rule(18)
async def test_a_tool_that_no_host_has_is_waited_for_until_its_deadline(book: Book) -> None:
    command = book.command(start=False)
    await book.admit(command)
    unit = missing(book, command.binding_digest)
    assert await book.ledger.commit(fail_missing, unit) == 0
    assert (await book.row(command.id))["waiting"] == "no live host of the route has once@1"
    await book.clock.advance(61)
    assert await book.ledger.commit(fail_missing, missing(book, command.binding_digest)) == 1
    [update] = await book.updates(command.id)
    assert (update.effect, update.code) == (Effect.NONE, "unknown_tool")


@pytest.mark.rule(18)
async def test_a_rolling_deploy_waits_while_one_live_host_has_the_tool(
    book: Book, other: Book
) -> None:
    command = book.command(start=False)
    await book.admit(command)
    await offer(book, {"once@1": "sha256:" + "1" * 64})
    await offer(other, {"once@1": command.binding_digest})
    await book.clock.advance(100)
    assert await book.ledger.commit(fail_missing, missing(book, command.binding_digest)) == 0
    assert (await book.row(command.id))["state"] == S.ADMITTED


@pytest.mark.rule(17)
async def test_a_settled_execution_shrinks_and_still_answers_until_its_command_is_dead(
    book: Book,
) -> None:
    command = book.command()
    await book.admit(command)
    await book.finish(command.id)
    unit = Settled(executions=[(command.id, 1)], keep_ms=1000, now=book.now)
    await book.ledger.commit(settle, unit)
    row = await book.row(command.id)
    assert (row["command"], row["forget_at"]) == (None, command.admit_before + 1000)
    assert await book.updates(command.id) == []
    assert (await book.admit(command))[0].admission is Admission.KNOWN
    assert not await book.ledger.read(lambda tx: anything_to_forget(tx, book.now))
    assert await book.ledger.commit(forget, command.admit_before + 1000) is False
    found = await book.ledger.read(lambda tx: present(tx, command.id))
    assert found.row is None


@pytest.mark.rule(13)
@pytest.mark.rule(17)
async def test_an_unknown_execution_keeps_everything_when_it_is_settled(
    other: Book, unknown: str
) -> None:
    unit = Settled(executions=[(unknown, 1)], keep_ms=0, now=other.now)
    await other.ledger.commit(settle, unit)
    row = await other.row(unknown)
    assert row["command"] is not None and row["forget_at"] is None


async def test_a_settlement_that_missed_the_last_update_shrinks_nothing(book: Book) -> None:
    command = book.command()
    await book.admit(command)
    await book.finish(command.id)
    unit = Settled(executions=[(command.id, 0)], keep_ms=0, now=book.now)
    await book.ledger.commit(settle, unit)
    assert (await book.row(command.id))["forget_at"] is None


async def test_a_bar_goes_when_its_command_is_dead(book: Book) -> None:
    command = book.command()
    unit = Bar(execution=command.id, until=command.admit_before, code="unauthorized", reason="no")
    await book.ledger.commit(bar, unit)
    await book.ledger.commit(forget, command.admit_before + 1)
    found = await book.ledger.read(lambda tx: present(tx, command.id))
    assert found.barred is None
