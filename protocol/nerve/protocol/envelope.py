"""The one outer shape of every message: who, where, which version, and a digest over the body.

Sealing writes canonical JSON once and never again; opening proves that what came is what was
sealed before anything reads its body. Trace context stands outside the digest.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, ValidationError

from nerve.protocol.canonical import (
    DEPTH_MAX,
    canonical_bytes,
    check_value,
    digest,
    read_canonical,
    read_strict,
)
from nerve.protocol.commands import StartCommand
from nerve.protocol.controls import (
    CancelExecution,
    Hello,
    QueryExecution,
    ReadOutput,
    ReplayUpdates,
    RouteQuery,
    SettledExecutions,
)
from nerve.protocol.errors import (
    BadInput,
    DigestMismatch,
    InvalidJSON,
    JSONFault,
    ProtocolVersion,
    TooLarge,
)
from nerve.protocol.identity import (
    EXECUTION_PATTERN,
    ExecutionId,
    NameField,
    RouteField,
    new_uuid7,
)
from nerve.protocol.updates import (
    ExecutionUpdate,
    HelloUpdate,
    NotFoundUpdate,
    OutputPageUpdate,
    SnapshotUpdate,
)
from nerve.protocol.version import BUILT, CURRENT, PROTOCOL, Version
from nerve.protocol.wire import Count, Digest, Millis, Wire, parse_wire, refused

ENVELOPE_BYTES_MAX: Final = 1024 * 1024
BUNDLE_BYTES_MAX: Final = 256 * 1024
BUNDLE_ENVELOPES_MAX: Final = 64
# A value of the greatest depth stands some levels below the envelope's root.
_DEPTH_MAX: Final = DEPTH_MAX + 16


class Kind(StrEnum):
    START = "command.start"
    QUERY = "control.query"
    CANCEL = "control.cancel"
    REPLAY = "control.replay"
    READ_OUTPUT = "control.read_output"
    SETTLED = "control.settled"
    ROUTE_QUERY = "control.route_query"
    HELLO = "control.hello"
    EXECUTION = "update.execution"
    NOT_FOUND = "update.not_found"
    OUTPUT_PAGE = "update.output_page"
    SNAPSHOT = "update.snapshot"
    HELLO_UPDATE = "update.hello"

    @property
    def is_command(self) -> bool:
        return self is Kind.START

    @property
    def is_control(self) -> bool:
        return self.startswith("control.")

    @property
    def is_update(self) -> bool:
        return self.startswith("update.")


Control = (
    QueryExecution
    | CancelExecution
    | ReplayUpdates
    | ReadOutput
    | SettledExecutions
    | RouteQuery
    | Hello
)
Update = ExecutionUpdate | NotFoundUpdate | OutputPageUpdate | SnapshotUpdate | HelloUpdate
Body = StartCommand | Control | Update

BODIES: Final[dict[str, type[Body]]] = {
    Kind.START: StartCommand,
    Kind.QUERY: QueryExecution,
    Kind.CANCEL: CancelExecution,
    Kind.REPLAY: ReplayUpdates,
    Kind.READ_OUTPUT: ReadOutput,
    Kind.SETTLED: SettledExecutions,
    Kind.ROUTE_QUERY: RouteQuery,
    Kind.HELLO: Hello,
    Kind.EXECUTION: ExecutionUpdate,
    Kind.NOT_FOUND: NotFoundUpdate,
    Kind.OUTPUT_PAGE: OutputPageUpdate,
    Kind.SNAPSHOT: SnapshotUpdate,
    Kind.HELLO_UPDATE: HelloUpdate,
}
_KINDS: Final = {model: Kind(kind) for kind, model in BODIES.items()}
_SEQUENCED: Final = frozenset({Kind.EXECUTION, Kind.SNAPSHOT})

TraceField = Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=8)]
VersionField = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,6}\.[0-9]{1,6}$")]
MessageField = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$"),
]
ExecutionOrNone = Annotated[str, StringConstraints(pattern=f"^$|{EXECUTION_PATTERN}")]


class Header(Wire):
    """Everything beside the body; `execution` is empty where a message concerns many."""

    protocol: Literal["nerve.execution"] = PROTOCOL
    version: VersionField
    kind: str
    id: MessageField
    deployment: RouteField
    namespace: NameField
    route: RouteField
    execution: ExecutionOrNone
    sequence: Count
    issued_at: Millis
    digest: Digest
    trace: TraceField | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """An opened or sealed message. Of a large value its body holds a reference."""

    header: Header
    body: Body
    raw: bytes

    def with_body(self, body: Body) -> "Envelope":
        """The same message whose large value was fetched; `raw` stays as it came."""
        return replace(self, body=body)

    @property
    def kind(self) -> Kind:
        return Kind(self.header.kind)

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def deployment(self) -> str:
        return self.header.deployment

    @property
    def namespace(self) -> str:
        return self.header.namespace

    @property
    def route(self) -> str:
        return self.header.route

    @property
    def execution(self) -> ExecutionId:
        return ExecutionId(self.header.execution)

    @property
    def sequence(self) -> int:
        return self.header.sequence

    @property
    def issued_at(self) -> int:
        return self.header.issued_at

    @property
    def digest(self) -> str:
        return self.header.digest

    @property
    def trace(self) -> dict[str, str]:
        return self.header.trace or {}

    @property
    def version(self) -> str:
        return self.header.version


def seal(
    *,
    body: Body,
    deployment: str,
    namespace: str,
    route: str,
    issued_at: int,
    kind: Kind | None = None,
    id: str | None = None,
    trace: dict[str, str] | None = None,
    version: Version = CURRENT,
) -> Envelope:
    """The finished message; kind, execution and sequence follow from the body."""
    known = _KINDS[type(body)]
    if kind is not None and kind is not known:
        raise BadInput(f"a {type(body).__name__} is no {kind}", where="kind")
    content = body.to_json() | _added_since_built(version)
    written = canonical_bytes(content)
    fields: dict[str, Any] = {
        "deployment": deployment,
        "digest": digest(written),
        "execution": getattr(body, "execution", ""),
        "id": id or new_uuid7(issued_at, os.urandom),
        "issued_at": issued_at,
        "kind": str(known),
        "namespace": namespace,
        "protocol": PROTOCOL,
        "route": route,
        "sequence": getattr(body, "sequence", 0) if known in _SEQUENCED else 0,
        "version": str(version),
    }
    if trace:
        fields["trace"] = trace
    header = _header(fields, tolerant=False)
    # "body" sorts before every other name, so the body is written once.
    rest = canonical_bytes(fields | _added_since_built(version))
    raw = b'{"body":' + written + b"," + rest[1:]
    _check_size(raw, header)
    if raw.count(b"{") + raw.count(b"[") > _DEPTH_MAX:
        check_value(content, "body", depth_max=_DEPTH_MAX - 1)
    return Envelope(header, body, raw)


def open_envelope(raw: bytes, *, version: Version = CURRENT) -> Envelope:
    """The message in `raw`, proven whole and understood; nothing of it is trusted before."""
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise TooLarge(
            f"an envelope of {len(raw)} bytes; the limit is {ENVELOPE_BYTES_MAX}",
            next_step="Put the large value into the object store and send its reference",
        )
    fields, raw = _read(raw)
    newer = _tolerated(version, fields.get("protocol"), fields.get("version"))
    absent = "body" not in fields
    body = fields.pop("body", None)
    header = _header(fields, tolerant=newer)
    if absent:
        raise BadInput("the envelope has no body", where="/body", next_step="Send it whole")
    return Envelope(header, _opened(header, canonical_bytes(body), newer), raw)


def bundle(raws: Sequence[bytes]) -> bytes:
    """Envelopes of one topic in one delivery; canonical JSON holds no raw newline."""
    joined = b"\n".join(raws)
    if len(raws) > BUNDLE_ENVELOPES_MAX or (len(raws) > 1 and len(joined) > BUNDLE_BYTES_MAX):
        raise TooLarge(
            f"a bundle of {len(raws)} envelopes and {len(joined)} bytes",
            next_step=f"At most {BUNDLE_ENVELOPES_MAX} and {BUNDLE_BYTES_MAX} bytes; use bundles",
        )
    return joined


def bundles(raws: Iterable[bytes]) -> Iterator[bytes]:
    """As few bundles as the limits allow, in order."""
    held: list[bytes] = []
    size = 0
    for raw in raws:
        full = len(held) == BUNDLE_ENVELOPES_MAX or size + len(raw) > BUNDLE_BYTES_MAX
        if held and full:
            yield bundle(held)
            held, size = [], 0
        held.append(raw)
        size += len(raw) + 1
    if held:
        yield bundle(held)


def unbundle(body: bytes) -> list[bytes]:
    """The raw envelopes; each is opened, and may be set aside, on its own."""
    return body.split(b"\n")


def _read(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields, and the bytes in canonical form whatever form they came in."""
    try:
        value = read_canonical(raw, depth_max=_DEPTH_MAX)
    except ValueError:
        value = read_strict(raw, bytes_max=ENVELOPE_BYTES_MAX, depth_max=_DEPTH_MAX)
        raw = canonical_bytes(value)
    if not isinstance(value, dict):
        raise InvalidJSON(
            "an envelope is a JSON object", reason=JSONFault.TYPE, next_step="Send an object"
        )
    return value, raw


def _header(fields: dict[str, Any], *, tolerant: bool) -> Header:
    try:
        return Header.model_validate(fields, extra="ignore" if tolerant else "forbid")
    except ValidationError as error:
        raise refused(error, "") from None


def _model(header: Header) -> type[Body]:
    model = BODIES.get(header.kind)
    if model is None:
        raise ProtocolVersion(
            f"the message kind {ascii(header.kind)[:80]} of version {header.version} is not known",
            where="/kind",
            next_step=f"Upgrade this process, which speaks version {CURRENT}",
        )
    return model


def _opened(header: Header, written: bytes, newer: bool) -> Body:
    found = digest(written)
    if found != header.digest:
        raise DigestMismatch(
            f"the body has {found}, the envelope says {header.digest}",
            where="/digest",
            next_step="The message was changed or cut on its way; let it be sent again",
        )
    body = parse_wire(_model(header), written, "/body", tolerant=newer)
    expected = getattr(body, "sequence", 0) if header.kind in _SEQUENCED else 0
    if getattr(body, "execution", "") != header.execution or expected != header.sequence:
        raise BadInput(
            "the envelope's execution or sequence is not the body's",
            where="/execution",
            next_step="Seal the message again from its body",
        )
    return body


def _check_size(raw: bytes, header: Header) -> None:
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise TooLarge(
            f"a {header.kind} envelope of {len(raw)} bytes; the limit is {ENVELOPE_BYTES_MAX}",
            where=header.execution,
            next_step="Send less, or configure an object store for large bodies",
        )


def _tolerated(version: Version, protocol: object, sender: object) -> bool:
    """Whether unknown fields are ignored: those of a newer minor, or of a simulated one."""
    return version.check(protocol, sender) or version.minor > BUILT.minor


def _added_since_built(version: Version) -> dict[str, Any]:
    """A simulated newer build says what this one cannot know, so that skew tests mean something."""
    return {"x_since_minor": version.minor} if version.minor > BUILT.minor else {}
