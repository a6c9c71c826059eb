"""How many tools run at once: in all, and in each pool that a tool needs room in."""

from collections.abc import Callable, Sequence

from nerve.hands.port import Pool
from nerve.protocol.binding import ToolBinding


class Slots:
    def __init__(self, total: int, pools: Callable[[ToolBinding], Sequence[Pool]]) -> None:
        self.total = total
        self.used = 0
        self._pools = pools
        self._of: dict[str, Sequence[Pool]] = {}
        self._in_pool: dict[str, int] = {}

    @property
    def free_now(self) -> int:
        return max(0, self.total - self.used)

    def take(self, binding: ToolBinding) -> bool:
        """Whether there was room; it is taken then."""
        if self.used >= self.total:
            return False
        pools = self._needed(binding)
        if any(self._in_pool.get(pool.name, 0) >= pool.size for pool in pools):
            return False
        self.used += 1
        for pool in pools:
            self._in_pool[pool.name] = self._in_pool.get(pool.name, 0) + 1
        return True

    def free(self, binding: ToolBinding) -> None:
        self.used -= 1
        for pool in self._needed(binding):
            self._in_pool[pool.name] -= 1

    def _needed(self, binding: ToolBinding) -> Sequence[Pool]:
        digest = binding.digest
        pools = self._of.get(digest)
        if pools is None:
            pools = self._of[digest] = self._pools(binding)
        return pools
