"""Where a ledger stands, so that two copies of one are told apart, and what it remembers of that."""

import hashlib
from collections.abc import Mapping

SEAT = "seat"
BEFORE = "seat_before"
FOREIGN = "seat_foreign"


def seat_of(*place: object) -> str:
    """A short name of a place: the same place has the same one, whoever asks."""
    return hashlib.sha256("\n".join(map(str, place)).encode()).hexdigest()[:16]


def notes(meta: Mapping[str, str]) -> list[str]:
    """What a person should know of a ledger's cell, from the rows of its `meta`."""
    cell, seat = meta.get("id", ""), meta.get(SEAT, "")
    found: list[str] = []
    if FOREIGN in meta and meta[FOREIGN] != seat:
        found.append(
            f"two ledgers share the cell {cell}: this one stands at {seat}, and updates arrive for"
            f" one at {meta[FOREIGN]}; stop the hosts of one of them, or give the copy another"
            " deployment"
        )
    elif BEFORE in meta:
        found.append(
            f"the ledger of the cell {cell} stood at {meta[BEFORE]} before and stands at {seat} now;"
            " where the old one still runs, both take each other's updates: stop one of them"
        )
    return found
