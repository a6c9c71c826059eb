"""Servers that a test run starts for itself with the `services` script.

One that is `shared` is the same for all workers of a parallel run, and nobody kills it; any other
belongs to the process that made it, and tests may kill and stop it. All end with the run or process
that wanted them, also where it was killed. With NERVE_TEST_SERVERS=containers every one of them is a
container and nothing runs natively: what only a native server can do is then not there.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.servers.containers import RECIPES, ContainerServer
from support.services import Unavailable, required

SCRIPT = Path(__file__).with_name("services")
CONTAINERS_ONLY = os.environ.get("NERVE_TEST_SERVERS") == "containers"


class NativeServer:
    """One instance: `start` makes or restarts it on the same data and port."""

    def __init__(
        self,
        service: str,
        *,
        programs: Sequence[str],
        asked: bool = False,
        shared: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`asked`: too heavy to be started for everybody, only where `NERVE_REQUIRE` names it."""
        self.service = service
        self._asked = asked
        self._programs = programs
        self._environment = {**os.environ, **(environment or {})}
        self._run = os.environ.get("PYTEST_XDIST_TESTRUNUID") if shared else None
        self._directory: Path | None = None
        self._addresses: dict[str, str] = {}
        self._failed: str | None = None
        self._container: ContainerServer | None = None
        if CONTAINERS_ONLY and service in RECIPES and not environment:
            self._container = ContainerServer(RECIPES[service])

    @property
    def directory(self) -> Path:
        if self._directory is None and self._run:
            user = os.getuid()
            name = f"nerve-{self.service}-{user}-{self._run}"
            self._directory = Path(tempfile.gettempdir(), name)
            self._directory.mkdir(mode=0o700, exist_ok=True)
        elif self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"nerve-{self.service}-"))
        return self._directory

    def address(self, key: str) -> str:
        """The value that the server printed under `key`; starts it where it does not run yet."""
        if not self._addresses:
            self.start()
        return self._addresses[key]

    def start(self) -> None:
        if CONTAINERS_ONLY:
            self._addresses = dict(self._contained().started())
            return
        if self._asked and not required(self.service):
            raise Unavailable(f"it is started only where NERVE_REQUIRE names {self.service}")
        if not all(_found(program) for program in self._programs):
            raise Unavailable(
                f"{self._programs[0]} is not installed ({SCRIPT.name} install {self.service})"
            )
        if self._failed:
            raise Unavailable(self._failed)
        # The workers of a run are children of the process that is the run.
        owner = os.getppid() if self._run else os.getpid()
        with (self.directory / "starting").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            out = self._call("start", "--dir", str(self.directory), "--owner", str(owner))
        self._addresses = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def _contained(self) -> ContainerServer:
        if self._container is None:
            raise Unavailable(f"this run has containers only, and none for such a {self.service}")
        return self._container

    def stop(self) -> None:
        if CONTAINERS_ONLY:
            return self._contained().stop()
        self._call("stop", "--dir", str(self.directory))

    def kill(self) -> None:
        """SIGKILL, all of it; `start` brings it back."""
        if CONTAINERS_ONLY:
            return self._contained().kill()
        self._call("kill", "--dir", str(self.directory))

    def drop(self) -> None:
        if self._container is not None:
            self._addresses = {}
            return self._container.drop()
        if self._run:
            return  # Others of the run may use it; it ends with the run.
        directory, self._directory = self._directory, None
        self._addresses = {}
        if directory is not None:
            subprocess.run([SCRIPT, "drop", "--dir", directory], check=False, timeout=60)
            shutil.rmtree(directory, ignore_errors=True)

    def _call(self, command: str, *arguments: str) -> str:
        called = subprocess.run(
            [SCRIPT, command, self.service, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=self._environment,
        )
        if called.returncode:
            text = f"{self.service} did not {command}: {called.stderr[-300:].strip()}"
            self._failed = text if command == "start" else None
            raise Unavailable(text)
        return called.stdout


def _found(program: str) -> bool:
    return shutil.which(program) is not None or any(Path("/usr/lib").glob(f"*/*/bin/{program}"))
