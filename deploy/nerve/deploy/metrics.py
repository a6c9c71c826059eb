"""Scrapes of one process: its own instruments, and what its ledgers hold at that moment."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, final

from nerve.common.metrics import parse_address
from nerve.protocol.errors import BadInput

if TYPE_CHECKING:
    from nerve.deploy.host import Host


@final
class Scrapes:
    """What `/metrics` shows: the host that runs now."""

    def __init__(self) -> None:
        self.address: str | None = None
        self._host: "Host | None" = None

    def show(self, host: "Host") -> None:
        self._host = host

    def collect(self) -> Iterable[Any]:  # prometheus-client has no public type for families
        if self._host is None:
            return
        for worker in self._host.workers.values():
            for instrument in worker.metrics.instruments():
                yield from instrument.collect()

    @classmethod
    @contextmanager
    def serving(cls, address: str | None) -> Generator[Self]:
        """Answer scrapes at HOST:PORT for the length of a block; nothing where it is None."""
        scrapes = cls()
        if address is None:
            yield scrapes
            return
        from prometheus_client import (
            CollectorRegistry,
            PlatformCollector,
            ProcessCollector,
            start_http_server,
        )

        try:
            host, port = parse_address(address)
        except ValueError as error:
            raise BadInput(str(error), where="--metrics") from None
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(scrapes)  # type: ignore[arg-type]  # anything with collect() will do
        server, thread = start_http_server(port, addr=host, registry=registry)
        scrapes.address = f"{host}:{server.server_port}"
        try:
            yield scrapes
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)
