"""What this host owns and does not run: cancels recorded elsewhere, and tasks that got lost inside."""

from typing import final

from nerve.common.clock import Clock
from nerve.common.lease import Host
from nerve.common.sql import Ledger
from nerve.hands.engine import Engine
from nerve.hands.ledger.answers import owned
from nerve.hands.ledger.records import read_row
from nerve.hands.ledger.release import Abandon, abandon
from nerve.hands.ledger.reports import Speaker
from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import open_envelope


@final
class Ownership:
    """Compares the rows of this incarnation with what runs.

    A row that is missing among the running twice in a row got lost (an in-doubt admission, a crashed
    task). One whose tool was never entered runs now; of the others nobody knows, and they are given up.
    """

    name = "ownership"

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        speaker: Speaker,
        *,
        clock: Clock,
        scan_seconds: float,
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._engine = engine
        self._speaker = speaker
        self._clock = clock
        self._suspects: dict[str, int] = {}

    async def run_once(self) -> bool:
        host = self._engine.host
        if host is None:
            return False
        suspects: dict[str, int] = {}
        for row in await self._ledger.read(lambda tx: owned(tx, host.id)):
            run = self._engine.running.get(row["id"])
            if run is not None:
                if row["cancel_requested_at"] is not None:
                    run.cancel()
            elif self._suspects.get(row["id"]) == row["token"]:
                await self._recover(host, row["id"], row["token"])
            else:
                suspects[row["id"]] = row["token"]
        self._suspects = suspects
        return False

    async def _recover(self, host: Host, execution: str, token: int) -> None:
        entered = self._engine.has_entered(execution, token)
        if not entered and self._engine.accepting:
            row = await self._ledger.read(lambda tx: read_row(tx, execution))
            if row is None or (row["host"], row["token"]) != (host.id, token):
                return
            command = open_envelope(row["command"]).body
            assert isinstance(command, StartCommand)
            binding = self._engine.match(command)
            if binding is not None:
                if self._engine.take(binding, command.namespace):
                    attempt: int = row["attempt"]
                    self._engine.launch(
                        command, binding, token=token, attempt=attempt, host=host.id
                    )
                return
        unit = Abandon(
            id=execution,
            host=host.id,
            token=token,
            entered=entered,
            speaker=self._speaker,
            now=self._clock.now_ms(),
        )
        await self._ledger.commit(abandon, unit)
        self._engine.forget_entry(execution)
