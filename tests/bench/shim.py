"""The preloaded shim: compiled where there is a compiler; its environment, counters and log."""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("flush_shim.c")
LAYOUT = struct.Struct("=4Q")
MARKS = ("ask-", "final ")
MARK_ID = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals over every process of the measured system."""

    flushes: int = 0
    commits: int = 0
    wal_bytes: int = 0
    datagrams: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the shim's log; `kind` is W, M, B or F as in flush_shim.c."""

    ns: int
    thread: int
    kind: str
    path: str
    mark: str


def compile_shim(directory: Path) -> Path | None:
    """The shared object, or None where the machine has no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    target = directory / "flush_shim.so"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        directory.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(fresh), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        fresh.replace(target)
    return target


def environment(
    shim: Path | None, *, counters: Path, log: Path | None = None, delay_ms: float = 0
) -> dict[str, str]:
    """What a measured process needs in its environment; empty without a compiler."""
    if shim is None:
        return {}
    variables = {"LD_PRELOAD": str(shim), "BENCH_SHIM_COUNTERS": str(counters)}
    if delay_ms:
        variables["BENCH_SHIM_DELAY_US"] = str(int(delay_ms * 1000))
    if log is not None:
        variables |= {"BENCH_SHIM_LOG": str(log), "BENCH_SHIM_MARKS": ",".join(MARKS)}
    return variables


def read_counters(variables: Mapping[str, str]) -> Counters | None:
    path = variables.get("BENCH_SHIM_COUNTERS")
    if path is None or not Path(path).exists():
        return None
    flushes, commits, wal_bytes, datagrams = LAYOUT.unpack(Path(path).read_bytes())
    return Counters(flushes=flushes, commits=commits, wal_bytes=wal_bytes, datagrams=datagrams)


def events(log: Path) -> Iterator[Event]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            ns, thread, kind, path, mark = line.removesuffix("\n").split(" ", 4)
            yield Event(ns=int(ns), thread=int(thread), kind=kind, path=path, mark=mark)
