"""How many tools run at once: in all, of one tenant, and in each pool that a tool needs room in."""

from collections.abc import Callable, Sequence

from nerve.hands.port import Pool
from nerve.protocol.binding import ToolBinding


class Slots:
    """Room in one Hands process. `tenant_total` 0: a tenant may take all of it."""

    def __init__(
        self,
        total: int,
        pools: Callable[[ToolBinding], Sequence[Pool]],
        *,
        tenant_total: int = 0,
    ) -> None:
        self.total = total
        self.used = 0
        self.tenant_total = tenant_total
        self._pools = pools
        self._of: dict[str, Sequence[Pool]] = {}
        self._in_pool: dict[str, int] = {}

    @property
    def free_now(self) -> int:
        return max(0, self.total - self.used)

    def take(self, binding: ToolBinding, namespace: str) -> bool:
        """Whether there was room; it is taken then."""
        if self.used >= self.total:
            return False
        pools = self._needed(binding, namespace)
        if any(self._is_full(pool) for pool in pools):
            return False
        self.used += 1
        for pool in pools:
            self._in_pool[pool.name] = self._in_pool.get(pool.name, 0) + 1
        return True

    def free(self, binding: ToolBinding, namespace: str) -> None:
        self.used -= 1
        for pool in self._needed(binding, namespace):
            left = self._in_pool.pop(pool.name) - 1
            if left:
                self._in_pool[pool.name] = left

    def obstacle(self, binding: ToolBinding, namespace: str) -> str | None:
        """Why there is no room now, in words; the narrowest limit first."""
        for pool in self._needed(binding, namespace):
            if self._is_full(pool):
                return pool.full
        if self.used >= self.total:
            return f"all {self.total} slots of its Hands are in use"
        return None

    def _is_full(self, pool: Pool) -> bool:
        return self._in_pool.get(pool.name, 0) >= pool.size

    def _needed(self, binding: ToolBinding, namespace: str) -> Sequence[Pool]:
        digest = binding.digest
        pools = self._of.get(digest)
        if pools is None:
            pools = self._of[digest] = self._pools(binding)
        return [self._tenant(namespace), *pools] if self.tenant_total else pools

    def _tenant(self, namespace: str) -> Pool:
        size = self.tenant_total
        return Pool(
            name=f"tenant:{namespace}",
            size=size,
            full=f"{namespace} may run {size} tools at once in one Hands process, and does",
        )
