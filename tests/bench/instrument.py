"""How flushes are counted, slowed and ordered here: the shim, else strace, else not at all."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import shim

SLOW_MS = 2.0
STRACE = ("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is put before and around the command of one measured process."""

    prefix: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """The best instrument that this machine has."""

    shim: Path | None
    strace: bool

    @classmethod
    def find(cls, directory: Path) -> "Instrument":
        return cls(shim=shim.compile_shim(directory), strace=shutil.which("strace") is not None)

    def said(self) -> str:
        if self.shim:
            return (
                "preloaded shim (flushes, commits and doorbells counted; order of flushes logged)"
            )
        if self.strace:
            return "strace (flushes counted and slowed; no C compiler, so no order of flushes)"
        return "none: no C compiler and no strace, so flushes are neither counted nor slowed"

    def counting(self, directory: Path) -> Launch:
        counters = directory / "counters"
        return Launch(environment=shim.environment(self.shim, counters=counters))

    def slowing(self, directory: Path) -> Launch | None:
        counters = directory / "counters"
        if self.shim:
            variables = shim.environment(self.shim, counters=counters, delay_ms=SLOW_MS)
            return Launch(environment=variables)
        if self.strace:
            inject = f"inject=fsync,fdatasync:delay_enter={int(SLOW_MS * 1000)}"
            return Launch(prefix=(*STRACE, "-e", inject, "-o", "/dev/null"))
        return None

    def logging(self, directory: Path) -> Launch | None:
        """For the check of the order; with strace the log only holds the flushes."""
        if self.shim:
            log, counters = directory / "flushes.log", directory / "counters"
            return Launch(environment=shim.environment(self.shim, counters=counters, log=log))
        if self.strace:
            return Launch(prefix=(*STRACE, "-o", str(directory / "flushes.log")))
        return None
