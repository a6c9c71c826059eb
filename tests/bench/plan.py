"""What one start of a peer measures, and how long; passed to the driving process as JSON."""

import json
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """One start of one peer: warm up, one at a time, some outstanding, then nothing at all."""

    directory: Path
    warm_s: float = 1.0
    idle_s: float = 4.0
    rate_s: float = 5.0
    outstanding: tuple[int, ...] = (64, 256)
    settle_s: float = 2.0
    quiet_s: float = 10.0
    statements_s: float = 0.0
    acknowledgements: Path | None = None

    @property
    def effect_file(self) -> Path:
        return self.directory / "effects.txt"

    def quick(self) -> "Phases":
        return replace(self, warm_s=0.3, idle_s=1.5, rate_s=2.0, settle_s=0.5, quiet_s=3.0)

    def slowed(self) -> "Phases":
        """The column with slower flushes: latency and one rate are enough."""
        return replace(self, outstanding=(64,), quiet_s=0.0)

    def with_servers(self) -> "Phases":
        """With a database server one short phase more, which counts statements.

        A connection prepares each statement once, which is none of a turn's cost: so a longer warm-up.
        """
        return replace(self, warm_s=self.warm_s + 3, statements_s=self.rate_s / 2)

    def scaled(self) -> "Phases":
        """More replicas on one ledger: one rate, and nothing else."""
        return replace(self, outstanding=(64,), idle_s=0.0, quiet_s=0.0, statements_s=0.0)

    def ordered(self) -> "Phases":
        """The check of the order of flushes: few turns, every event logged."""
        acknowledgements = self.directory / "acknowledged.json"
        return replace(
            self,
            warm_s=0.2,
            idle_s=1.0,
            rate_s=0.5,
            outstanding=(16,),
            quiet_s=0.0,
            acknowledgements=acknowledgements,
        )

    def dump(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, default=str)

    @classmethod
    def parse(cls, text: str) -> "Phases":
        values = json.loads(text)
        values["directory"] = Path(values["directory"])
        values["outstanding"] = tuple(values["outstanding"])
        if values["acknowledgements"]:
            values["acknowledgements"] = Path(values["acknowledgements"])
        return cls(**values)
