"""A run of the compose file, with tools whose effects lie in a folder outside of every ledger."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, final

from support.engine import Compose

APPS = Path(__file__).parents[1] / "e2e/containers"


@final
class World:
    """The containers, the folder that holds the effects, and ways to give work."""

    def __init__(self, compose: Compose, work: Path) -> None:
        self.compose = compose
        self.work = work

    def load(
        self,
        tool: str,
        prefix: str,
        count: int,
        *,
        seconds: float = 0.0,
        at_once: int = 32,
        patience: float = 240.0,
    ) -> dict[str, tuple[str, float]]:
        """Phase and seconds of `count` Turns, each of which calls the tool once."""
        code = (APPS / "load.py").read_text(encoding="utf-8")
        words = [tool, prefix, str(count), f"{seconds:g}", str(at_once), f"{patience:g}"]
        found: Any = json.loads(self.compose.python("brain", code, *words))
        return {key: (str(each[0]), float(each[1])) for key, each in found.items()}

    def effects(self, pool: str, prefix: str) -> Counter[str]:
        """How often each key of a load left its line."""
        path = self.work / pool
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return Counter(line.split()[0] for line in lines if line.startswith(f"{prefix}-"))

    def unknown(self, service: str) -> dict[str, str]:
        """Executions that are UNKNOWN in a pool, by the key that they were called with."""
        found: Any = json.loads(self.compose.nerve(service, "reconcile", "--json"))
        return {str(each["arguments"]["key"]): str(each["execution"]) for each in found["unknown"]}
