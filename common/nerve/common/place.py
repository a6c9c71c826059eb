"""The state directory of one machine: what stands where, and whether this folder is the one it says.

`nerve.json` is the marker. It names the folder by (device, inode), so that a copy is told from the
original, and lists the ledgers that were made here, so that a missing one is not made anew in silence:
a host that finds an empty ledger would run every tool again.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, cast

from nerve.protocol.errors import BadInput, Damaged, WrongLedger

MARKER = "nerve.json"
FORMAT = 1

_NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "afs",
        "lustre",
    }
)


class Adoption(StrEnum):
    """Why a folder is not where its marker says. Both raise the epoch of its ledgers."""

    MOVED = "moved"
    COPY = "copy"


@dataclass(slots=True)
class StateDirectory:
    """`.nerve`: ledgers, broker, objects, locks and bells of the hosts of one machine."""

    path: Path
    _marker: dict[str, Any]

    @classmethod
    def open(cls, path: Path, *, create: bool) -> Self:
        """Open the folder (or make it, where `create`).

        Raises:
            WrongLedger: there is none, or it is a copy of another or was moved here.
            BadInput: it stands on a network file system, or is not a folder.
            Damaged: its marker cannot be read.
        """
        path = path.absolute()
        try:
            return cls._open(path, create=create)
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise BadInput(
                f"{path} cannot be used: {error.strerror or error}",
                where="--dir",
                next_step="name a folder that this user may read and write",
            ) from error

    @classmethod
    def _open(cls, path: Path, *, create: bool) -> Self:
        if path.exists() and not path.is_dir():
            raise BadInput(
                f"{path} is not a folder", where="--dir", next_step="name a folder for the state"
            )
        marker = path / MARKER
        if not marker.exists():
            if not create:
                raise _absent(path)
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            _refuse_network(path)
            _write_new(path, {"format": FORMAT, "ledgers": [], **_folder(path)})
        else:
            _refuse_network(path)
        found = cls(path=path, _marker=_read(path))
        found._refuse_stranger()
        for name in ("locks", "bells", "objects"):
            (path / name).mkdir(exist_ok=True, mode=0o700)
        return found

    @property
    def locks(self) -> Path:
        return self.path / "locks"

    @property
    def bells(self) -> Path:
        return self.path / "bells"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def broker(self) -> Path:
        return self.path / "broker.db"

    @property
    def ledgers(self) -> list[str]:
        """Names of the ledgers that were made here."""
        return list(self._marker["ledgers"])

    @property
    def seat(self) -> str:
        """A short name of this folder, as its marker has it: moving or copying it changes that."""
        marker = self._marker
        place = f"{marker['path']}\n{marker.get('device')}\n{marker.get('inode')}"
        return hashlib.sha256(place.encode()).hexdigest()[:16]

    def ledger(self, name: str) -> Path:
        """The file of the ledger `name` ("brain", "hands-<route>").

        Raises:
            WrongLedger: it was made here before and is gone.
        """
        path = self.path / f"{name}.db"
        if name in self._marker["ledgers"] and not path.exists():
            raise WrongLedger(
                f"the ledger {path} is missing, although the marker says it was made here",
                where=str(path),
                next_step="put it back; or, if what it knew is lost, run"
                f" `nerve doctor --dir {self.path} --forget {name}`: nothing that may have run is"
                " repeated, it becomes UNKNOWN",
            )
        return path

    def made(self, name: str) -> None:
        """Write down that the ledger `name` exists from now on."""
        self._marker = _change(self.path, lambda ledgers: ledgers | {name})

    def forget(self, name: str) -> None:
        """An operator says that the ledger `name` is lost: a new one may be made."""
        with _locked(self.path):
            marker = _read(self.path)
            marker.get("signs", {}).pop(name, None)
            _replace(self.path, marker)
        self._marker = _change(self.path, lambda ledgers: ledgers - {name})

    @contextmanager
    def sign(
        self, name: str
    ) -> Generator[tuple[dict[str, Any] | None, Callable[[dict[str, Any]], None]]]:
        """What the marker knows of a ledger's file, and how to write down something else; alone."""

        def write(sign: dict[str, Any]) -> None:
            marker = _read(self.path)
            marker.setdefault("signs", {})[name] = sign
            _replace(self.path, marker)
            self._marker = marker

        with _locked(self.path):
            yield _read(self.path).get("signs", {}).get(name), write

    def _refuse_stranger(self) -> None:
        here = _folder(self.path)
        marked = self._marker
        same_inode = marked.get("inode") == here["inode"]
        if same_inode and (
            marked.get("device") == here["device"] or marked["path"] == here["path"]
        ):
            return
        raise WrongLedger(
            f"{self.path} is a copy of {marked['path']}, or was moved from there",
            where=str(self.path / MARKER),
            next_step=f"say which: `nerve doctor --dir {self.path} --adopt moved` (the old one is"
            " gone) or `--adopt copy` (the old one goes on)",
        )


def adopt(path: Path) -> StateDirectory:
    """Make the marker name this folder. The caller raises the epoch of each ledger in it."""
    path = path.absolute()
    if not (path / MARKER).exists():
        raise _absent(path)
    with _locked(path):
        _replace(path, {**_read(path), **_folder(path)})
    return StateDirectory.open(path, create=False)


def _absent(path: Path) -> WrongLedger:
    return WrongLedger(
        f"there is no nerve state in {path}",
        where="--dir",
        next_step="start a host there (`nerve dev app.py`), or name the right directory with --dir",
    )


def _folder(path: Path) -> dict[str, Any]:
    found = path.stat()
    return {"path": str(path), "device": found.st_dev, "inode": found.st_ino}


def _read(path: Path) -> dict[str, Any]:
    try:
        marker = cast(dict[str, Any], json.loads((path / MARKER).read_bytes()))
        if marker["format"] > FORMAT:
            raise WrongLedger(
                f"{path} was made by a newer nerve",
                where=str(path / MARKER),
                next_step="install the newer nerve on this host",
            )
        if not isinstance(marker["ledgers"], list) or not isinstance(marker["path"], str):
            raise ValueError("its fields are of the wrong kind")
        return marker
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(
            f"the marker {path / MARKER} cannot be read: {error}",
            where=str(path / MARKER),
            next_step="restore it from a backup, or move the folder away to start anew",
        ) from error


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Several hosts start on one folder at once: what one adds, another may not write over."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _change(path: Path, change: Callable[[set[str]], set[str]]) -> dict[str, Any]:
    """Write another list of ledgers, where it is another; the marker as it stands then."""
    with _locked(path):
        marker = _read(path)
        ledgers = sorted(change(set(marker["ledgers"])))
        if ledgers != marker["ledgers"]:
            marker["ledgers"] = ledgers
            _replace(path, marker)
        return marker


def _write_new(path: Path, marker: dict[str, Any]) -> None:
    temporary = _written(path, marker)
    try:
        # A link fails where another host was first; its marker stands.
        os.link(temporary, path / MARKER)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _replace(path: Path, marker: dict[str, Any]) -> None:
    os.replace(_written(path, marker), path / MARKER)


def _written(path: Path, marker: dict[str, Any]) -> Path:
    temporary = path / f".{MARKER}.{secrets.token_hex(8)}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(marker, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _refuse_network(path: Path) -> None:
    kind = _file_system(path)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise BadInput(
            f"{path} stands on a network file system ({kind}), where file locks cannot be trusted",
            where="--dir",
            next_step="name a folder on a local disk; several machines need PostgreSQL",
        )


def _file_system(path: Path) -> str:
    """The kind of file system below `path`; empty where the platform does not say."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    text = str(path.resolve())
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].replace("\\040", " ")
        inside = text == mount or text.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind
