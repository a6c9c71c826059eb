"""The same work for every peer: two scripted model answers and one tool with an outside effect."""

import os
from typing import Any

EFFECT_FILE = os.environ.get("BENCH_EFFECT_FILE", "effects.txt")
RESULT = "r" * 200


def model_1(turn: str) -> dict[str, Any]:
    return {"tool": "tool", "args": {"turn": turn}}


def tool(turn: str) -> str:
    fd = os.open(EFFECT_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{turn} {os.getpid()}\n".encode())
    os.close(fd)
    return RESULT


def model_2(turn: str, result: str) -> str:
    return f"final {turn} {len(result)}"
