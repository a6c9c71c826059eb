"""nerve in the driver's own process: the same engine, both ledgers durable, no broker process."""

from collections.abc import Mapping, Sequence

from bench.peers import nerve_2p_peer
from bench.peers.nerve_app import agent_with, tools
from nerve.brain.runtime import DurableRuntime
from nerve.deploy.host import local_host
from nerve.deploy.serving import spare_collector


class Peer(nerve_2p_peer.Peer):
    def settings(self) -> Mapping[str, str]:
        return {**super().settings(), "broker": "none", "tool": "in process, own ledger"}

    def procs(self) -> Mapping[str, Sequence[str]]:
        return {}

    async def _open(self) -> DurableRuntime:
        opening = local_host([agent_with(tools)], tools, self._directory)
        host = await self._stack.enter_async_context(opening)
        assert host.runtime is not None
        spare_collector()
        return host.runtime
