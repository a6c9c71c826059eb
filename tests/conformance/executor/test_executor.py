"""What every executor promises to its caller: once, in order, answered from what is recorded."""

import pytest

from nerve.protocol.execution import Effect, ExecutionState
from nerve.protocol.output import Assembly
from nerve.protocol.updates import Absence
from support.executor_world import World
from support.waiting import until

S = ExecutionState


@pytest.mark.capability("D3.1")
async def test_a_call_ends_with_its_result(world: World) -> None:
    execution = await world.run("echo", text="hello")
    update = await world.told.end(execution)
    assert (update.state, update.effect, update.attempt) == (S.SUCCEEDED, Effect.COMPLETED, 1)
    assert update.result is not None and update.result.value == "hello"


@pytest.mark.capability("D7.1", "D7.2")
@pytest.mark.law(6)
async def test_a_repeated_command_is_answered_and_never_run_again(world: World) -> None:
    command = world.asker.call("echo", text="x")
    execution, sealed = command.execution, world.asker.seal(command)
    for _ in range(3):
        await world.executor.start([sealed, sealed])
    await world.told.end(execution)
    await world.executor.start([sealed])
    snapshot = await world.told.snapshot(execution)
    assert snapshot.state is S.SUCCEEDED
    assert snapshot.result is not None and snapshot.result.value == "x"
    assert world.effects.entered == [execution]


@pytest.mark.capability("D7.1")
async def test_a_query_tells_the_recorded_state_and_result(world: World) -> None:
    execution = await world.run("echo", text="x")
    ended = await world.told.end(execution)
    await world.executor.control([world.asker.query(execution)])
    snapshot = await world.told.snapshot(execution)
    assert (snapshot.sequence, snapshot.state, snapshot.result) == (
        ended.sequence,
        ended.state,
        ended.result,
    )


@pytest.mark.rule(12)
async def test_a_query_for_what_was_never_seen_names_the_ledger_that_says_so(
    world: World,
) -> None:
    execution = world.asker.call("echo", text="x").execution
    await world.executor.control([world.asker.query(execution)])
    absent = await world.told.absence(execution)
    assert absent.absence is Absence.NEVER_SEEN
    assert absent.ledger.ledger_id and absent.ledger.epoch == 1


@pytest.mark.capability("D4.1")
@pytest.mark.rule(14)
async def test_what_lasts_is_reported_and_its_updates_are_numbered_without_gaps(
    world: World,
) -> None:
    execution = await world.run("hold")
    await world.told.until(lambda told: told.updates[execution], "the start was reported")
    world.effects.gate.set()
    await world.told.end(execution)
    updates = world.told.updates[execution]
    assert [each.sequence for each in updates] == list(range(1, len(updates) + 1))
    assert (updates[0].state, updates[0].effect) == (S.STARTED, Effect.UNCONFIRMED)
    assert not updates[-1].covers_admission


@pytest.mark.capability("D4.2")
async def test_a_replay_sends_the_same_bytes_again(world: World) -> None:
    execution = await world.run("echo", text="x")
    await world.told.end(execution)
    first = list(world.told.raws)
    await world.executor.control([world.asker.replay(execution)])
    await world.told.until(lambda told: len(told.raws) > len(first), "the replay came")
    assert world.told.raws[len(first) :] == first


@pytest.mark.capability("D6.1")
async def test_a_cancel_before_the_start_leaves_a_tombstone(world: World) -> None:
    command = world.asker.call("echo", text="x")
    await world.executor.control([world.asker.cancel(command.execution)])
    await world.executor.start([world.asker.seal(command)])
    update = await world.told.end(command.execution)
    assert (update.state, update.effect) == (S.CANCELLED, Effect.NONE)
    await world.told.snapshot(command.execution)
    assert world.effects.entered == []


@pytest.mark.capability("D6.2")
@pytest.mark.law(11)
async def test_a_cancel_that_the_tool_cannot_confirm_is_only_requested(world: World) -> None:
    execution = await world.run("hold")
    await until(lambda: execution in world.effects.entered, "the tool was entered")
    await world.executor.control([world.asker.cancel(execution)])
    await world.told.until(
        lambda told: any(each.cancel_requested for each in told.updates[execution]),
        "the wish became visible",
    )
    world.effects.gate.set()
    update = await world.told.end(execution)
    assert (update.state, update.cancel_requested) == (S.SUCCEEDED, True)
    assert update.result is not None and update.result.value == "cancel was requested"


@pytest.mark.capability("D6.2")
async def test_a_cancel_that_the_tool_can_confirm_ends_it(world: World) -> None:
    execution = await world.run("stop")
    await until(lambda: execution in world.effects.entered, "the tool was entered")
    await world.executor.control([world.asker.cancel(execution)])
    update = await world.told.end(execution)
    assert (update.state, update.effect) == (S.CANCELLED, Effect.UNCONFIRMED)


@pytest.mark.capability("D9.3")
async def test_a_tool_can_read_its_origin(world: World) -> None:
    command = world.asker.call("origin")
    await world.executor.start([world.asker.seal(command)])
    update = await world.told.end(command.execution)
    assert update.result is not None
    assert update.result.value == [command.origin.run, command.origin.step]


@pytest.mark.capability("D5.1", "D5.2")
async def test_output_is_read_in_pages_from_any_offset_up_to_its_seal(world: World) -> None:
    execution = await world.run("speak", size=150_000)
    update = await world.told.end(execution)
    assert update.result is not None and update.result.output is not None
    assembly, offset, seal = Assembly(execution), 0, None
    for count in range(1, 10):
        question = world.asker.read_output(execution, offset=offset, limit=40_000)
        await world.executor.control([question])
        answer = await world.told.output(execution, count)
        for page in answer.pages:
            assembly.add(page)
        offset = answer.next_offset
        if (seal := answer.seal) is not None:
            break
    assembly.check(update.result.output)
    assert (offset, seal) == (150_000, update.result.output)


@pytest.mark.report("U50")
async def test_what_cannot_be_read_or_belongs_elsewhere_is_refused_and_the_rest_goes_on(
    world: World,
) -> None:
    good = world.asker.call("echo", text="x")
    foreign = world.asker.envelope(world.asker.call("echo", text="y")).raw
    foreign = foreign.replace(b'"deployment":"local"', b'"deployment":"other"')
    truncated = world.asker.seal(world.asker.call("echo", text="z"))[:-20]
    forged = world.asker.seal(world.asker.call("echo", text="a")).replace(b'"a"', b'"b"')
    bad = [b"\xff\x00", b"{}", truncated, forged, foreign]
    await world.executor.start([*bad, world.asker.seal(good)])
    await world.told.end(good.execution)
    assert world.effects.entered == [good.execution]


async def test_more_calls_than_slots_all_end(world: World) -> None:
    world.effects.gate.set()
    commands = [world.asker.call("hold") for _ in range(40)]
    await world.executor.start([world.asker.seal(each) for each in commands])
    updates = await world.told.ends(each.execution for each in commands)
    assert {each.state for each in updates} == {S.SUCCEEDED}
    assert sorted(world.effects.entered) == sorted(each.execution for each in commands)


async def test_it_says_what_a_caller_may_rely_on(world: World) -> None:
    assert world.executor.capabilities().routes == ("hands",)


@pytest.mark.capability("G5.1")
async def test_an_endpoint_says_what_it_can_and_claims_nothing_by_that(world: World) -> None:
    told = world.executor.capabilities()
    assert (told.query, told.cancel, told.output, told.replay) == (True, True, True, True)
    assert told.routes == ("hands",)
    assert told.recover
    assert (world.effects.entered, world.told.raws) == ([], [])
    # What it says holds: a call is recovered, queried, cancelled and streamed through this endpoint.
    execution = await world.run("stop")
    await until(lambda: world.effects.entered == [execution], "the tool runs")
    await world.executor.control([world.asker.query(execution), world.asker.replay(execution)])
    await world.told.until(
        lambda told: told.snapshots[execution] or told.updates[execution], "it was answered"
    )
    await world.executor.control([world.asker.cancel(execution)])
    assert (await world.told.end(execution)).state is S.CANCELLED
