"""What waits is started when a slot is free, whatever tool it is of, and not only at the next scan."""

from pathlib import Path

from nerve.common.settings import Settings
from support.hands_place import Bench, place
from support.waiting import until

SELDOM = Settings(scan_seconds=60.0)


async def test_a_tool_of_which_nothing_waits_any_more_holds_up_no_other(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), slots=1, settings=SELDOM) as here:
        holding = await here.start("hold")
        await until(lambda: bench.effects == [holding], "the only slot is taken")
        waiting = [await here.start("act"), await here.start("again")]
        bench.gate.set()
        await here.told.ends([holding, *waiting])
        assert bench.effects == [holding, *waiting]
