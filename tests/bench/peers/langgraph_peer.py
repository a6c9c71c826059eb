"""LangGraph with its SQLite saver: three nodes in the driver's process, the tool too."""

import itertools
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

from bench.peer import Acknowledged
from bench.peers import work
from bench.processes import files_bytes

DURABILITY = "sync"
graphs: Any = import_module("langgraph.graph")
savers: Any = import_module("langgraph.checkpoint.sqlite.aio")


class State(TypedDict, total=False):
    turn: str
    call: dict[str, Any]
    result: str
    answer: str


async def model_1(state: State) -> State:
    assert "turn" in state
    return {"call": work.model_1(state["turn"])}


async def tool(state: State) -> State:
    assert "call" in state
    return {"result": work.tool(state["call"]["args"]["turn"])}


async def model_2(state: State) -> State:
    assert "turn" in state and "result" in state
    return {"answer": work.model_2(state["turn"], state["result"])}


def build() -> Any:
    graph = graphs.StateGraph(State)
    graph.add_node("model_1", model_1)
    graph.add_node("tool", tool)
    graph.add_node("model_2", model_2)
    graph.add_edge(graphs.START, "model_1")
    graph.add_edge("model_1", "tool")
    graph.add_edge("tool", "model_2")
    graph.add_edge("model_2", graphs.END)
    return graph


class Peer:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "langgraph.db"
        self._sync = "?"
        self._numbers = itertools.count()

    def settings(self) -> Mapping[str, str]:
        return {
            "version": f"langgraph {version('langgraph')}",
            "store": f"langgraph-checkpoint-sqlite {version('langgraph-checkpoint-sqlite')}",
            "durability": DURABILITY,
            "sync level": self._sync,
            "tool": "in process",
            "threads": "a new one for each turn, numbered",
        }

    def prepare(self) -> None:
        return None

    def procs(self) -> Mapping[str, Sequence[str]]:
        return {}

    async def connect(self) -> None:
        self._saving = savers.AsyncSqliteSaver.from_conn_string(str(self._path))
        saver = await self._saving.__aenter__()
        await saver.setup()
        self._graph = build().compile(checkpointer=saver)
        self._sync = await self._read_sync(saver.conn)

    async def _read_sync(self, connection: Any) -> str:
        words = list[str]()
        for pragma in ("journal_mode", "synchronous"):
            async with connection.execute(f"pragma {pragma}") as cursor:
                words.append(f"{pragma}={(await cursor.fetchone())[0]}")
        return ", ".join(words)

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        config = {"configurable": {"thread_id": f"s{next(self._numbers):08d}"}}
        out = await self._graph.ainvoke({"turn": turn}, config, durability=DURABILITY)
        return str(out["answer"])

    def store_bytes(self) -> int:
        return files_bytes(self._path.parent.glob("langgraph.db*"))

    async def close(self) -> None:
        await self._saving.__aexit__(None, None, None)
