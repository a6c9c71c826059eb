"""`python -m nerve.deploy.demo.child PARENT PIPE MODULE ...`: run a module that ends with its parent.

The parent may be killed at any time and must leave nothing behind, not even a stopped child: the
kernel is asked to kill this process with it where it can do that, and a pipe tells it elsewhere.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, pipe, module = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    end_with(parent, pipe)
    sys.argv = [module, *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def end_with(parent: int, pipe: int) -> None:
    """Die when `parent` does. `pipe` is the reading end of one that only the parent can write to."""
    os.set_inheritable(pipe, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(pipe,), name="parent", daemon=True).start()


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
