"""The state directory: made once, known again, refused where it is a copy or lacks what it had."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nerve.brain import LocalBackend
from nerve.common import place
from nerve.common.place import StateDirectory, adopt
from nerve.protocol.errors import BadInput, Damaged, WrongLedger

pytestmark = pytest.mark.rule(25)


def made(path: Path) -> StateDirectory:
    directory = StateDirectory.open(path, create=True)
    directory.made("brain")
    (path / "brain.db").touch()
    return directory


def test_it_is_made_only_where_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(WrongLedger, match="start a host there"):
        StateDirectory.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    directory = StateDirectory.open(tmp_path / "some", create=True)
    assert directory.ledgers == []
    assert {each.name for each in (tmp_path / "some").iterdir()} >= {"locks", "bells", "objects"}
    assert (tmp_path / "some").stat().st_mode & 0o077 == 0


def test_a_ledger_that_was_made_here_and_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    directory = made(tmp_path / "s")
    (tmp_path / "s" / "brain.db").unlink()
    again = StateDirectory.open(tmp_path / "s", create=True)
    with pytest.raises(WrongLedger, match="it becomes UNKNOWN"):
        again.ledger("brain")
    assert again.ledger("hands-hands") == tmp_path / "s" / "hands-hands.db"
    directory.forget("brain")
    assert StateDirectory.open(tmp_path / "s", create=False).ledger("brain").name == "brain.db"


async def test_a_brain_does_not_start_on_a_lost_ledger(tmp_path: Path) -> None:
    async with LocalBackend.open(tmp_path / "s"):
        pass
    for each in (tmp_path / "s").glob("brain.db*"):
        each.unlink()
    with pytest.raises(WrongLedger, match="missing"):
        await LocalBackend.open(tmp_path / "s")
    with pytest.raises(WrongLedger):
        await LocalBackend.open(tmp_path / "elsewhere", create=False)


def test_a_copy_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(WrongLedger, match="--adopt copy") as caught:
        StateDirectory.open(tmp_path / "b", create=True)
    assert str(tmp_path / "a") in caught.value.message
    assert adopt(tmp_path / "b").ledgers == ["brain"]
    StateDirectory.open(tmp_path / "b", create=False)
    StateDirectory.open(tmp_path / "a", create=False)


def test_a_folder_restored_in_its_place_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    made(tmp_path / "a")
    # Both stand at once, so that the new one cannot have the inode of the old one.
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "backup").rename(tmp_path / "a")
    with pytest.raises(WrongLedger, match="--adopt moved"):
        StateDirectory.open(tmp_path / "a", create=True)


def test_the_same_folder_under_another_name_is_the_same_folder(tmp_path: Path) -> None:
    """As a container sees a mounted one: the folder itself says who it is, not its path."""
    made(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert StateDirectory.open(tmp_path / "link", create=False).ledgers == ["brain"]


def test_hosts_that_start_at_once_lose_no_mark(tmp_path: Path) -> None:
    def start(number: int) -> None:
        StateDirectory.open(tmp_path / "s", create=True).made(f"hands-{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(40)))
    directory = StateDirectory.open(tmp_path / "s", create=False)
    assert directory.ledgers == sorted(f"hands-{number}" for number in range(40))
    assert not list((tmp_path / "s").glob(".nerve.json*"))


@pytest.mark.parametrize(
    "marker",
    ["", "{", "[]", "null", '"x"', "{}", '{"format": "one"}', '{"format": 1, "ledgers": 3}'],
)
def test_a_marker_that_cannot_be_read_is_damage(tmp_path: Path, marker: str) -> None:
    made(tmp_path / "s")
    (tmp_path / "s" / "nerve.json").write_text(marker)
    with pytest.raises(Damaged, match="restore it from a backup"):
        StateDirectory.open(tmp_path / "s", create=True)


def test_a_newer_marker_is_refused_by_name(tmp_path: Path) -> None:
    made(tmp_path / "s")
    marker = tmp_path / "s" / "nerve.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 2}))
    with pytest.raises(WrongLedger, match="made by a newer nerve"):
        StateDirectory.open(tmp_path / "s", create=True)


def test_what_is_no_folder_or_may_not_be_used_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match="not a folder|cannot be used"):
            StateDirectory.open(wrong, create=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    with pytest.raises(BadInput, match="cannot be used"):
        StateDirectory.open(tmp_path / "theirs" / "mine", create=True)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def network(path: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(place, "_file_system", network)
    with pytest.raises(BadInput, match=r"network file system \(nfs4\)"):
        StateDirectory.open(tmp_path / "s", create=True)
    assert not (tmp_path / "s" / "nerve.json").exists()
