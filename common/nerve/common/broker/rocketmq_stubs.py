"""The generated gRPC stubs of RocketMQ, untyped, loaded without the side effects of their package.

Its `__init__` reconfigures the logging of the whole process, opens log files below HOME and imports
OpenTelemetry. The stubs lie in a subpackage that needs none of it, so only that is executed.
"""

import importlib
import os
import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from types import ModuleType
from typing import Any, final

from nerve.protocol.errors import BadInput

PACKAGE = "rocketmq"
OTHER = "rocketmq-client-python"
NEEDED = "rocketmq-python-client>=5.1.2"

_lock = threading.Lock()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stubs:
    """Generated code has no types: Any, and only here."""

    grpc: Any
    definition: Any
    service: Any
    client: Any
    """The class of the client stub."""

    def name(self, status: Any) -> str:
        """The name of a `Status`'s code, also where the server is newer than the stubs."""
        try:
            return str(self.definition.Code.Name(status.code))
        except ValueError:
            return f"code {status.code}"


@cache
def load() -> Stubs:
    """Raises BadInput where they are missing, or where another distribution owns their module."""
    refuse_the_other()
    # Its core writes to standard error, past every logger and every limit.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        grpc = importlib.import_module("grpc")
        importlib.import_module("grpc.aio")
        with _lock:
            definition, service, calls = _subpackage()
    except ImportError as error:
        raise BadInput(
            f"RocketMQ needs the extra rocketmq ({type(error).__name__}: {error})",
            where="--broker",
            next_step="pip install 'nerve[rocketmq]'",
        ) from error
    return Stubs(
        grpc=grpc, definition=definition, service=service, client=calls.MessagingServiceStub
    )


def refuse_the_other() -> None:
    """The client of the old protocol overwrites the files of this one: neither can be trusted."""
    try:
        distribution(OTHER)
    except PackageNotFoundError:
        return
    raise BadInput(
        f"{OTHER} is installed: it owns the same module {PACKAGE!r} and cannot speak to RocketMQ 5",
        where="environment",
        next_step=f"pip uninstall -y {OTHER} && pip install --force-reinstall '{NEEDED}'",
    )


def _subpackage() -> tuple[ModuleType, ModuleType, ModuleType]:
    names = [f"{PACKAGE}.grpc_protocol.{name}" for name in ("definition_pb2", "service_pb2")]
    names.append(f"{PACKAGE}.grpc_protocol.service_pb2_grpc")
    made = _stand_in()
    try:
        definition, service, calls = map(importlib.import_module, names)
    finally:
        # An application that uses the package itself gets the real one.
        if made is not None and sys.modules.get(PACKAGE) is made:
            del sys.modules[PACKAGE]
    return definition, service, calls


def _stand_in() -> ModuleType | None:
    """An empty parent in the place of the package; None where that is already imported."""
    if PACKAGE in sys.modules:
        return None
    found = find_spec(PACKAGE)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no module named {PACKAGE!r}", name=PACKAGE)
    parent = ModuleType(PACKAGE)
    parent.__path__ = list(found.submodule_search_locations)
    sys.modules[PACKAGE] = parent
    return parent
