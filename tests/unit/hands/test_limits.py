"""Limits of a Hands process: what meets one waits and says so, and what meets none goes past it."""

from dataclasses import replace
from pathlib import Path

from nerve.common.settings import Settings
from nerve.hands.port import Pool
from nerve.hands.slots import Slots
from nerve.protocol.catalog import Catalog
from nerve.protocol.signature import ToolContext
from support.hands_place import Bench, Place, place
from support.waiting import until

QUICK = Settings(scan_seconds=60.0, admission_report_seconds=0.05, hands_tenant_slots=2)


async def start_as(here: Place, namespace: str, tool: str) -> str:
    asker = replace(here.asker, namespace=namespace)
    command = asker.call(tool)
    here.asker.count = asker.count
    await here.executor.start([asker.seal(command)])
    return command.execution


async def test_a_tenant_at_its_limit_waits_with_that_reason_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), slots=3, settings=QUICK) as here:
        acme = [await start_as(here, "acme", "hold") for _ in range(4)]
        await until(lambda: len(bench.effects) == 2, "two of the tenant run")
        other = await start_as(here, "other", "hold")
        await until(lambda: bench.effects[-1] == other, "another tenant has the third slot")
        last = acme[-1]
        await here.told.until(lambda told: told.updates[last], "its admission was reported")
        assert [each.reason for each in here.told.updates[last]] == [
            "acme may run 2 tools at once in one Hands process, and does"
        ]
        bench.gate.set()
        await here.told.ends([*acme, other])
        assert sorted(bench.effects) == sorted([*acme, other])


async def test_with_one_free_slot_at_a_time_every_tenant_has_its_share(tmp_path: Path) -> None:
    bench = Bench()
    one = replace(QUICK, hands_tenant_slots=1)
    async with place(tmp_path, bench.catalog(), slots=1, settings=one) as here:
        holding = await here.start("hold")
        await until(lambda: bench.effects == [holding], "the only slot is taken")
        many = [await start_as(here, "many", "act") for _ in range(20)]
        few = [await start_as(here, "few", "act") for _ in range(3)]
        bench.gate.set()
        await here.told.ends([holding, *many, *few])
        ranks = [bench.effects.index(each) for each in few]
        assert ranks == [2, 4, 6], bench.effects


async def test_a_tool_at_its_limit_says_so_and_one_without_goes_past_it(tmp_path: Path) -> None:
    bench = Bench()
    catalog = bench.catalog()

    @catalog.tool(concurrency=1)
    async def single(context: ToolContext) -> str:
        bench.effects.append(context.execution)
        await bench.gate.wait()
        return "done"

    async with place(tmp_path, catalog, slots=4, settings=QUICK) as here:
        first, second = await start_as(here, "a", "single"), await start_as(here, "b", "single")
        free = await start_as(here, "c", "act")
        await here.told.end(free)
        assert bench.effects == [first, free]
        await here.told.until(lambda told: told.updates[second], "its admission was reported")
        await here.executor.control([replace(here.asker, namespace="b").query(second)])
        said = "its tool may run 1 times at once in one Hands process, and does"
        assert (await here.told.snapshot(second)).reason == said
        bench.gate.set()
        await here.told.ends([first, second])


def test_room_is_counted_and_given_back_in_every_pool() -> None:
    catalog = Catalog()

    @catalog.tool
    async def act() -> str:
        return "x"

    binding = catalog.get("act")
    narrow = Pool(name="narrow", size=2, full="narrow is full")
    slots = Slots(3, lambda binding: [narrow], tenant_total=2)
    assert [slots.take(binding, "a"), slots.take(binding, "b")] == [True, True]
    assert (slots.take(binding, "c"), slots.obstacle(binding, "c")) == (False, "narrow is full")
    slots.free(binding, "a")
    assert (slots.obstacle(binding, "c"), slots.take(binding, "c")) == (None, True)
    for tenant in ("b", "c"):
        slots.free(binding, tenant)
    assert (slots.used, slots.free_now) == (0, 3)
