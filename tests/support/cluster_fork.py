"""Forks host processes from one that has imported everything: a kill costs milliseconds, not an import.

Reads a request a line on stdin, writes an event a line on stdout. Whoever ends it, by closing its stdin or
by dying, ends every process that it forked.
"""

import json
import os
import selectors
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

PRELOADED = (
    "nerve.brain",
    "nerve.brain.runtime",
    "nerve.brain.ledger.tables",
    "nerve.hands.worker",
    "nerve.hands.ledger.tables",
    "nerve.common.settings",
    "nerve.deploy.host",
    "support.cluster_host",
    "support.cluster_rare",
)


def main() -> None:
    for name in PRELOADED:
        import_module(name)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes)
    children: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(reads, selectors.EVENT_READ)
    os.set_blocking(0, False)
    _tell(ready=os.getpid())
    buffered = b""
    try:
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if reads in ready:
                os.read(reads, 4096)
                _reap(children)
            if 0 in ready:
                chunk = os.read(0, 65536)
                if not chunk:
                    return
                *lines, buffered = (buffered + chunk).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    children[_fork(request, [reads, writes])] = request["id"]
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _nothing(number: int, frame: FrameType | None) -> None:
    """SIGCHLD must only wake the selector."""


def _tell(**event: Any) -> None:
    os.write(1, (json.dumps(event) + "\n").encode())


def _reap(children: dict[int, int]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        # By number: pids come round again in a long run.
        _tell(ended=children.pop(pid), status=os.waitstatus_to_exitcode(status))


def _fork(request: dict[str, Any], ours: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(request, ours)
    _tell(forked=request["id"], pid=pid)
    return pid


def _become(request: dict[str, Any], ours: list[int]) -> NoReturn:
    """The child: its own environment, output and signals; it never comes back."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for descriptor in ours:
            os.close(descriptor)
        _redirect(request["output"])
        os.environ.update(request["environment"])
        from nerve.common import faults

        faults.arm(os.environ.get("NERVE_FAULTS", ""), log=os.environ.get("NERVE_FAULTS_LOG"))
        module, _, name = request["target"].partition(":")
        code = getattr(import_module(module), name)(*request["arguments"]) or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(output: str) -> None:
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)


if __name__ == "__main__":
    main()
