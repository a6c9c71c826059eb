"""Any order of laws on one ledger, compared with a model that a person can check by reading."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from nerve.common.clock import VirtualClock
from nerve.hands import ExecutionReconciliation, ExecutionStore
from nerve.hands.ledger.admit import Command
from nerve.hands.ledger.progress import Progress, report_progress
from nerve.hands.ledger.start import Lane, Start, Want, start
from nerve.protocol.errors import NerveError
from nerve.protocol.execution import Effect, ExecutionState, can_move, value_result
from support.hands_ledger import Book, open_book, unhindered

V = TypeVar("V")
S = ExecutionState
HOSTS = ("host-1", "host-2", "host-3")


@dataclass(frozen=True, slots=True)
class Seen:
    """The last state that was observed of an execution."""

    state: ExecutionState
    token: int
    sequence: int


class HandsLedger(RuleBasedStateMachine):
    """Three hosts on one file; each may be released once, and is then given nothing."""

    commands = Bundle("commands")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.clock = VirtualClock()
        self.books: dict[str, Book] = {}
        self.dead: set[str] = set()
        self.seen: dict[str, Seen] = {}
        self.starts: dict[str, list[tuple[str, int]]] = {}
        self.known: dict[str, Command] = {}

    @initialize()
    def open(self) -> None:
        for host in HOSTS:
            book = open_book(self.folder / "hands.db", self.clock, host=host)
            self.books[host] = self.run(self.stack.enter_async_context(book))
            self.books[host].asker = self.books[HOSTS[0]].asker

    def run(self, work: Coroutine[Any, Any, V]) -> V:
        return self.loop.run_until_complete(work)

    @rule(
        target=commands,
        host=st.sampled_from(HOSTS),
        tool=st.sampled_from(["once", "again"]),
        at_once=st.booleans(),
    )
    def ask(self, host: str, tool: str, at_once: bool) -> str:
        command = self.books[host].command(tool, start=at_once)
        self.known[command.id] = command
        self.deliver(command.id, host, at_once)
        return command.id

    @rule(id=commands, host=st.sampled_from(HOSTS), at_once=st.booleans())
    def deliver(self, id: str, host: str, at_once: bool) -> None:
        command = replace(self.known[id], start=at_once)
        verdict = self.run(self.books[host].admit(command))[0]
        if verdict.admission == "started":
            assert host not in self.dead
            self.starts.setdefault(id, []).append((host, 1))

    @rule(id=commands, host=st.sampled_from(HOSTS))
    def cancel(self, id: str, host: str) -> None:
        self.run(self.books[host].cancel(id))

    @rule(
        host=st.sampled_from(HOSTS),
        count=st.integers(1, 3),
        tool=st.sampled_from(["once", "again"]),
    )
    def take(self, host: str, count: int, tool: str) -> None:
        book = self.books[host]
        binding = book.asker.catalog.get(tool)
        want = Want(lane=Lane(binding.digest), repeatable=tool == "again", count=count)
        unit = Start(host=host, wants=[want], speaker=book.speaker, now=book.now)
        verdict = self.run(book.ledger.commit(start, unit))
        assert not (verdict.started and host in self.dead)
        for one in verdict.started:
            self.starts.setdefault(one.id, []).append((host, one.token))

    @rule(id=commands, which=st.integers(0, 5), succeeds=st.booleans())
    def finish(self, id: str, which: int, succeeds: bool) -> None:
        """Any owner of any time brings a result; only the present one's counts."""
        owners = self.starts.get(id)
        if not owners:
            return
        host, token = owners[which % len(owners)]
        before = self.run(self.books[host].row(id))
        owns = (before["host"], before["token"], before["state"]) == (host, token, S.STARTED)
        sequence = self.run(
            self.books[host].finish(
                id,
                token=token,
                state=S.SUCCEEDED if succeeds else S.FAILED,
                effect=Effect.COMPLETED if succeeds else Effect.UNCONFIRMED,
            )
        )
        repeated = (before["host"], before["token"]) == (host, token)
        assert (sequence is not None) == (owns or repeated)

    @rule(host=st.sampled_from(HOSTS), by=st.sampled_from(HOSTS))
    def release(self, host: str, by: str) -> None:
        if host != HOSTS[0]:  # One host stays, so that something can go on.
            assert self.run(self.books[by].release(host)) == (host not in self.dead)
            self.dead.add(host)

    @rule(id=commands, host=st.sampled_from(HOSTS))
    def report(self, id: str, host: str) -> None:
        book = self.books[host]
        unit = Progress(executions=[id], speaker=book.speaker, obstacle=unhindered, now=book.now)
        self.run(book.ledger.commit(report_progress, unit))

    @rule(id=commands, host=st.sampled_from(HOSTS), request=st.integers(1, 2))
    def reconcile(self, id: str, host: str, request: int) -> None:
        book = self.books[host]
        store = ExecutionStore(book.ledger, book.speaker, clock=book.clock)
        what = ExecutionReconciliation(
            request_id=f"{id}-{request}",
            operator="ada",
            evidence="seen",
            state=S.SUCCEEDED,
            result=value_result("checked"),
            owner_gone=True,
        )

        async def attempt() -> bool:
            try:
                await store.reconcile(await store.claim(id, "ada"), what)
            except NerveError:
                return False
            return True

        state = self.run(book.row(id))["state"]
        assert self.run(attempt()) == (state == S.UNKNOWN)

    @invariant()
    def every_step_was_a_legal_move_and_nothing_started_twice(self) -> None:
        for id in self.known:
            book = self.books[HOSTS[0]]
            row = self.run(book.row(id))
            now = Seen(S(row["state"]), row["token"], row["sequence"])
            last = self.seen.get(id)
            if last is not None and last.state is not now.state:
                assert self.reachable(last.state, now.state), (last, now)
            if last is not None:
                assert now.token >= last.token and now.sequence >= last.sequence
            self.seen[id] = now
            tokens = [token for _, token in self.starts.get(id, ())]
            assert len(set(tokens)) == len(tokens)
            if not self.known[id].repeatable:
                assert len(tokens) <= 1
            updates = self.run(book.updates(id))
            assert [each.sequence for each in updates] == list(range(1, now.sequence + 1))
            ends = [each for each in updates if each.state.is_settled]
            assert len(ends) <= 1

    def reachable(self, source: ExecutionState, target: ExecutionState) -> bool:
        if can_move(source, target, reconciling=source is S.UNKNOWN):
            return True
        # One rule may take two steps at once: a repeatable tool that is started again.
        return source is S.STARTED and target is S.STARTED

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()
        shutil.rmtree(self.folder)


HandsLedger.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
test_any_order_of_laws = pytest.mark.rule(9)(HandsLedger.TestCase)
