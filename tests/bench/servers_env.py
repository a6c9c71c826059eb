"""Names under which a peer, in an environment of its own, finds the servers and who measures them."""

import json
from collections.abc import Mapping

SERVERS = "BENCH_SERVERS"
DATABASE = "BENCH_DATABASE"


def server_pids(variables: Mapping[str, str]) -> dict[str, list[int]]:
    """Processes by server; their children belong to them."""
    found: dict[str, list[int]] = json.loads(variables.get(SERVERS, "{}"))
    return found
