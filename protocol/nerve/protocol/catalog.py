"""Bindings of many tools, made from typed Python functions or read back from JSON.

A Brain needs the bindings only; Hands also needs the functions, which are kept beside them.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, overload

from pydantic import JsonValue, ValidationError

from nerve.protocol.binding import Powers, ToolBinding
from nerve.protocol.canonical import canonical_bytes, check_value, digest, read_strict
from nerve.protocol.errors import BadInput, BindingMismatch, UnknownTool
from nerve.protocol.identity import check_name, check_route, check_tool_name
from nerve.protocol.signature import Function, ToolFunction, read_function
from nerve.protocol.wire import Wire, parse_wire, refused

CATALOG_BYTES_MAX: Final = 16 * 1024 * 1024
DEFAULT_ROUTE: Final = "hands"
F = TypeVar("F", bound=Function)


class CatalogExport(Wire):
    """The JSON form of a catalog."""

    format: int = 1
    route: str = DEFAULT_ROUTE
    bindings: tuple[ToolBinding, ...]


class Catalog:
    """Tools by name and version; the last version added of a name is the one offered."""

    def __init__(self, route: str = DEFAULT_ROUTE, bindings: Iterable[ToolBinding] = ()) -> None:
        self.route = check_route(route)
        self._bindings: dict[tuple[str, str], ToolBinding] = {}
        self._offered: dict[str, ToolBinding] = {}
        self._functions: dict[tuple[str, str], ToolFunction] = {}
        for binding in bindings:
            self.add(binding)

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        route: str | None = None,
        description: str | None = None,
        idempotent_start: bool = False,
        queryable: bool = False,
        cancellable: bool = False,
        output: bool = True,
        failures: Iterable[type[Exception]] = (),
        timeout_seconds: float | None = None,
        concurrency: int | None = None,
        target: dict[str, Any] | None = None,
    ) -> Callable[[F], F]: ...
    def tool(self, function: Function | None = None, /, **options: Any) -> Any:
        """Add a typed function; used bare or with options as a decorator."""

        def added(given: Function) -> Function:
            return self.add_function(given, **options)

        return added if function is None else added(function)

    def add_function(self, function: F, **options: Any) -> F:
        """What the decorator does, for functions that stand elsewhere; same options."""
        failures = tuple(options.pop("failures", ()))
        for kind in failures:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                step = "List exception classes, as (ValueError,)"
                raise BadInput(f"{kind!r} is no exception", where="failures", next_step=step)
        read = read_function(function, failures)
        self.add(_binding(function, read, self.route, options), read)
        return function

    def add(self, binding: ToolBinding, function: ToolFunction | None = None) -> ToolBinding:
        """The same binding again changes nothing; another under its name and version is refused."""
        key = (binding.name, binding.version)
        known = self._bindings.get(key)
        if known is not None and known.digest != binding.digest:
            changed = known.difference(binding)
            raise BindingMismatch(
                f"tool {binding.name!r} version {binding.version!r} exists with another "
                + " and another ".join(changed),
                where=binding.name,
                next_step='Give the changed tool another version, as version="2"',
                details={name: list(pair) for name, pair in changed.items()},
            )
        self._bindings[key] = binding
        self._offered[binding.name] = binding
        if function is not None:
            self._functions[key] = function
        return binding

    def get(self, name: str, version: str | None = None) -> ToolBinding:
        """The binding of a tool, of the version that is offered where none is given."""
        found = self._offered.get(name) if version is None else self._bindings.get((name, version))
        if found is None:
            raise self._unknown(name, version)
        return found

    def match(self, name: str, version: str, binding_digest: str) -> ToolBinding:
        """The binding that a call carries, or the error that says how ours differs."""
        found = self.get(name, version)
        if found.digest != binding_digest:
            raise BindingMismatch(
                f"tool {name!r} version {version!r} is {found.digest} here, "
                f"the call carries {binding_digest}",
                where=name,
                next_step="Give a changed tool another version, or deploy one catalog to both sides",
            )
        return found

    def function(self, name: str, version: str | None = None) -> Function:
        """The Python function behind a binding, as it was written."""
        return self.tool_function(name, version).call

    def tool_function(self, name: str, version: str | None = None) -> ToolFunction:
        """The function with typed arguments and context; a catalog read from JSON has none."""
        binding = self.get(name, version)
        found = self._functions.get((binding.name, binding.version))
        if found is None:
            raise UnknownTool(
                f"tool {name!r} has no function in this process",
                where=name,
                next_step="Load the file that defines it, not an exported catalog",
            )
        return found

    def has_function(self, name: str, version: str | None = None) -> bool:
        binding = self.get(name, version)
        return (binding.name, binding.version) in self._functions

    def check_arguments(
        self, name: str, value: JsonValue, version: str | None = None
    ) -> dict[str, JsonValue]:
        """Against the schema; and, where the function is here, as it would be called."""
        checked = self.get(name, version).check_arguments(value)
        if self.has_function(name, version):
            self.tool_function(name, version).arguments(name, checked)
        return checked

    def bindings(self, route: str | None = None) -> tuple[ToolBinding, ...]:
        """Every version of every tool, of one route where it is named, sorted."""
        ordered = [self._bindings[key] for key in sorted(self._bindings)]
        return tuple(each for each in ordered if route is None or each.route == route)

    def offered(self) -> tuple[ToolBinding, ...]:
        """One binding a name: what an agent is told of."""
        return tuple(self._offered.values())

    def routes(self) -> tuple[str, ...]:
        return tuple(sorted({binding.route for binding in self._bindings.values()}))

    @property
    def digest(self) -> str:
        """Names exactly this set of bindings."""
        return digest(sorted(binding.digest for binding in self._bindings.values()))

    def merge(self, other: "Catalog") -> "Catalog":
        """Everything of both; a tool that differs is refused as in `add`."""
        merged = Catalog(self.route)
        for catalog in (self, other):
            offered = {binding.digest for binding in catalog.offered()}
            for binding in sorted(catalog.bindings(), key=lambda each: each.digest in offered):
                key = (binding.name, binding.version)
                merged.add(binding, catalog._functions.get(key))
        return merged

    def export(self) -> dict[str, Any]:
        """The catalog as JSON, without code."""
        offered = {binding.digest for binding in self.offered()}
        ordered = sorted(self.bindings(), key=lambda each: each.digest in offered)
        return CatalogExport(route=self.route, bindings=tuple(ordered)).to_json()

    def export_bytes(self) -> bytes:
        return canonical_bytes(self.export())

    @classmethod
    def load(cls, exported: JsonValue | bytes | dict[str, Any]) -> "Catalog":
        """The catalog that `export` or `export_bytes` gave."""
        if isinstance(exported, bytes):
            exported = read_strict(exported, bytes_max=CATALOG_BYTES_MAX, where="catalog")
        read = parse_wire(CatalogExport, exported, "catalog")
        return cls(read.route, read.bindings)

    def __contains__(self, name: object) -> bool:
        return name in self._offered

    def __iter__(self) -> Iterator[ToolBinding]:
        return iter(self.offered())

    def __len__(self) -> int:
        return len(self._offered)

    def _unknown(self, name: str, version: str | None) -> UnknownTool:
        if version is not None and name in self._offered:
            versions = ", ".join(v for n, v in sorted(self._bindings) if n == name)
            return UnknownTool(
                f"tool {name!r} has no version {version!r}",
                where=name,
                next_step=f"Known versions: {versions}",
            )
        near = difflib.get_close_matches(name, self._offered, n=1)
        known = ", ".join(sorted(self._offered)[:20]) or "none"
        step = f"Did you mean {near[0]!r}?" if near else f"Known tools: {known}"
        return UnknownTool(f"no tool {ascii(name)[:80]}", where="tool", next_step=step)


_OPTIONS: Final = frozenset(
    "name version route description idempotent_start queryable cancellable output "
    "timeout_seconds concurrency target".split()
)


def _binding(
    function: Function, read: ToolFunction, route: str, options: dict[str, Any]
) -> ToolBinding:
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        step = f"Options are {', '.join(sorted(_OPTIONS | {'failures'}))}"
        raise BadInput(f"unknown option {unknown[0]!r} of a tool", where="tool", next_step=step)
    name = check_tool_name(str(options.get("name") or getattr(function, "__name__", "")))
    target = check_value(options.get("target") or {}, "target")
    assert isinstance(target, dict)
    try:
        return _made(name, read, route, target, options)
    except ValidationError as error:
        raise refused(error, f"tool {name}") from None


def _made(
    name: str,
    read: ToolFunction,
    route: str,
    target: dict[str, JsonValue],
    options: dict[str, Any],
) -> ToolBinding:
    return ToolBinding(
        name=name,
        version=check_name(str(options.get("version", "1")), "version"),
        route=check_route(options.get("route") or route),
        description=options.get("description") or read.description,
        input_schema=read.input_schema,
        target=target,
        powers=Powers(
            idempotent_start=options.get("idempotent_start", False),
            queryable=options.get("queryable", False),
            cancellable=options.get("cancellable", False),
            output=options.get("output", True),
        ),
        failures=tuple(sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in read.failures)),
        timeout_ms=_milliseconds(options.get("timeout_seconds")),
        concurrency=options.get("concurrency"),
    )


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds < float("inf"):
        step = "Give a positive number of seconds, or leave it out"
        raise BadInput(f"a timeout of {seconds} s", where="timeout_seconds", next_step=step)
    return max(1, round(seconds * 1000))
