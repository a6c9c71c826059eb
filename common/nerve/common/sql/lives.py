"""Whether the file of a ledger is the one that stood here before. Another one begins a new life of it.

A ledger that was restored from a copy has forgotten what it ran since, and cannot know that by itself. The
marker of the directory keeps a sign of each file: its inode, and a word that is changed in file and marker
at each start. Where they do not fit, the epoch is raised before anything is admitted, so that no command of
before is taken for a new one.
"""

import os
import secrets
import sqlite3
from pathlib import Path

from nerve.common import faults
from nerve.common.logs import get_log
from nerve.common.place import StateDirectory
from nerve.common.sql import sqlite
from nerve.common.sql.survey import raise_epoch

_log = get_log("nerve.common.lives")

_READ = "select value from meta where key = 'life'"
_WRITE = (
    "insert into meta (key, value) values ('life', ?)"
    " on conflict (key) do update set value = excluded.value"
)

faults.register("common", ["common.lives.before_commit", "common.lives.after_commit"])


def recognize(place: StateDirectory, name: str, *, now: int) -> bool:
    """Compare the file of `name` with its sign, and exchange the sign; blocking. Call before opening it.

    False: it is not the file that was left here, and its epoch was raised.
    """
    path = place.ledger(name)
    fresh = secrets.token_hex(8)
    with place.sign(name) as (known, write):
        inode, word = os.stat(path).st_ino, _word(path)
        same = known is None or (known["inode"] == inode and word in known["words"])
        if not same:
            # First, so that whoever dies between the two raises it once more, and not never.
            raise_epoch(path, now=now)
            _log.warning(
                "a ledger file was restored or replaced: what it may have forgotten is not repeated",
                ledger=name,
            )
        write({"inode": inode, "words": [word, fresh]})
        _exchange(path, fresh)
        # From now on the old word is that of a copy, which may even have the inode of what it replaced.
        write({"inode": inode, "words": [fresh]})
    return same


def _word(path: Path) -> str | None:
    connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        row = connection.execute(_READ).fetchone()
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    finally:
        connection.close()
    return None if row is None else str(row[0])


def _exchange(path: Path, word: str) -> None:
    connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        faults.point("common.lives.before_commit")
        connection.execute(_WRITE, (word,))
        faults.point("common.lives.after_commit")
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    finally:
        connection.close()
