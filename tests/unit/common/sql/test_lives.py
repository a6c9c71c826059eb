"""A file that stands where another one stood is told from it, even with the inode of what it replaced."""

import shutil
from pathlib import Path

import pytest

from nerve.common.place import StateDirectory
from nerve.common.sql.lives import recognize
from nerve.common.sql.migrate import prepare
from nerve.hands.ledger import HANDS_SCHEMA

NAME = "hands-hands"


@pytest.fixture
def place(tmp_path: Path) -> StateDirectory:
    made = StateDirectory.open(tmp_path / "state", create=True)
    prepare(made.ledger(NAME), HANDS_SCHEMA, create=True, now=1)
    return made


@pytest.mark.rule(12)
def test_the_file_that_was_left_is_known_at_every_start(place: StateDirectory) -> None:
    assert all(recognize(place, NAME, now=number) for number in range(4))


@pytest.mark.rule(12)
@pytest.mark.parametrize("starts", [1, 2, 3])
def test_a_copy_of_any_earlier_start_is_another_file_even_on_the_same_inode(
    place: StateDirectory, tmp_path: Path, starts: int
) -> None:
    path, copy = place.ledger(NAME), tmp_path / "copy"
    assert recognize(place, NAME, now=1)
    shutil.copyfile(path, copy)
    assert all(recognize(place, NAME, now=2) for _ in range(starts))
    inode = path.stat().st_ino
    path.write_bytes(copy.read_bytes())
    assert path.stat().st_ino == inode
    assert not recognize(place, NAME, now=3)
    assert recognize(place, NAME, now=4)
