"""`nerve health`: ask the host that serves its metrics at an address; for a container's health check.

Standard library only: an image's health check runs `python -m nerve.deploy.health` every few seconds.
"""

import http.client
import json
import os
import sys
from typing import Any

WELL = 0
USAGE = 2
UNWELL = 6
ASK_SECONDS = 5.0
VARIABLE = "NERVE_METRICS"
EVERYWHERE = {"", "0.0.0.0", "::", "[::]"}


def ask(address: str, *, live: bool = False) -> list[str]:
    """Why the host at HOST:PORT is not ready (or not `live`); nothing where it is."""
    host, _, port = address.rpartition(":")
    peer = http.client.HTTPConnection(
        "127.0.0.1" if host in EVERYWHERE else host.strip("[]"), int(port), timeout=ASK_SECONDS
    )
    try:
        peer.request("GET", "/live" if live else "/ready")
        answer = peer.getresponse()
        body = answer.read(65536)
    except (OSError, http.client.HTTPException) as error:
        return [f"no host answers at {address}: {type(error).__name__}"]
    finally:
        peer.close()
    return [] if answer.status == 200 else _reasons(body)


def _reasons(body: bytes) -> list[str]:
    try:
        found: Any = json.loads(body)
        return [str(each) for each in found["why"]] or ["it does not say why"]
    except (ValueError, KeyError, TypeError):
        return ["something else than a host answers there"]


def check(address: str, *, live: bool = False, as_json: bool = False) -> int:
    """Say how that host is, in one line; 0: well, 6: not."""
    if not address.rpartition(":")[2].isdecimal():
        sys.stderr.write(f"nerve health: name the host's --metrics HOST:PORT, or set {VARIABLE}\n")
        return USAGE
    why = ask(address, live=live)
    word = "live" if live else "ready"
    if as_json:
        print(json.dumps({"ok": not why, "why": why}))
    else:
        print(word if not why else f"not {word}: " + "; ".join(why))
    return UNWELL if why else WELL


if __name__ == "__main__":
    sys.exit(check(os.environ.get(VARIABLE, "")))
