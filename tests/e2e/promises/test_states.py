"""Every move that a ledger really makes stands in the one table of its machine."""

import asyncio
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from nerve.brain.state import intent, session, thread, turn
from nerve.hands.ledger.tables import metadata as hands_tables
from nerve.protocol import execution
from support.whole import Whole, whole

WATCH = """
create table moves (machine text, id text, old text, new text);
create trigger turn_moves after update of phase on turn begin
  insert into moves values ('turn', old.id, old.phase, new.phase); end;
create trigger thread_moves after update of phase on thread begin
  insert into moves values ('thread', old.id, old.phase, new.phase); end;
create trigger intent_moves after update of state on intent begin
  insert into moves values ('intent', old.execution, old.state, new.state); end;
create trigger session_moves after update of state on session begin
  insert into moves values ('session', old.id, old.state, new.state); end;
"""
WATCH_HANDS = """
create table moves (machine text, id text, old text, new text);
create trigger execution_moves after update of state on execution begin
  insert into moves values ('execution', old.id, old.state, new.state); end;
"""
TABLES: Mapping[str, Mapping[Any, Iterable[Any]]] = {
    "turn": turn.TRANSITIONS,
    "thread": thread.TRANSITIONS,
    "intent": intent.TRANSITIONS,
    "session": session.TRANSITIONS,
    "execution": execution.MOVES,
}


def illegal(moves: Iterable[Mapping[str, str]]) -> list[str]:
    found: list[str] = []
    for each in moves:
        old, new, machine = each["old"], each["new"], each["machine"]
        allowed: set[str] = {str(to) for to in TABLES[machine].get(old, ())}
        if new not in allowed and old != new:
            found.append(f"{machine} {each['id']}: {old} -> {new}")
    return found


async def busy(here: Whole) -> None:
    """Turns that end in every way, cancelled while queued, waiting and running."""
    words = ["echo", "echo prove throw odd", "talk", "wrong", "hold", "hold hold", "echo hold"]
    turns = [await here.submit(text, f"s-{n}") for n, text in enumerate(words)]
    queued = await here.submit("echo", "s-4", "r-2")
    await queued.cancel("c-0")
    behind = await here.submit("talk", "s-4", "r-3")
    await asyncio.sleep(0.2)
    await turns[5].cancel("c-1")
    await turns[6].cancel("c-2")
    failing = await here.submit("fail", "s-9")
    await asyncio.sleep(0.1)
    await failing.cancel("c-3")
    here.gate.set()
    for each in (*turns, queued, behind, failing):
        await each.result(30)
    await (await here.session("s-0")).close()


@pytest.mark.law(7)
@pytest.mark.rule(22)
async def test_each_move_in_both_ledgers_stands_in_its_table(tmp_path: Path) -> None:
    async with whole(tmp_path) as here:
        here.execute("brain", WATCH)
        here.execute("hands-hands", WATCH_HANDS)
        await busy(here)
        brain = here.rows("brain", "select * from moves")
        hands = here.rows("hands-hands", "select * from moves")
        seen = {(each["machine"], each["old"], each["new"]) for each in [*brain, *hands]}
        assert {"turn", "thread", "intent", "session", "execution"} == {name for name, *_ in seen}
        assert len(seen) > 15
        assert illegal(brain) + illegal(hands) == []


@pytest.mark.law(7)
async def test_each_column_that_holds_a_state_has_a_check_of_exactly_its_members(
    tmp_path: Path,
) -> None:
    columns: list[tuple[str, str, str, type[StrEnum]]] = [
        ("brain", "turn", "phase", turn.TurnPhase),
        ("brain", "thread", "phase", thread.ThreadPhase),
        ("brain", "session", "state", session.OpenState),
        ("brain", "intent", "state", intent.IntentState),
        ("hands-hands", "execution", "state", execution.ExecutionState),
        ("hands-hands", "execution", "effect", execution.Effect),
    ]
    assert "execution" in hands_tables().tables
    async with whole(tmp_path) as here:
        await (await here.submit("echo")).result(20)
        for ledger, table, column, states in columns:
            for value in ("NONSENSE", "", states.__name__):
                with pytest.raises(Exception, match="CHECK constraint failed"):
                    here.execute(ledger, f"update {table} set {column} = '{value}'")
