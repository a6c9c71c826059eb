"""Every number an operator may turn, read once from `NERVE_*`, with its default and what it means.

`Settings` is a plain value, so that reading a default costs no import; `load` brings pydantic-settings.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, cast, final, get_args, get_type_hints

from annotated_types import Ge, Gt, Le

PREFIX = "NERVE_"

FROM_FILES = ("broker", "database")
"""Settings that may hold a secret: NERVE_<NAME>_FILE names a file that holds the value."""

_KIB = 1024


@final
@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a setting decides, in a sentence for `nerve doctor`."""

    text: str


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of one process. Seconds are seconds, bytes are bytes."""

    deployment: Annotated[str, About("names the topics on the broker")] = "local"
    broker: Annotated[
        str,
        About(
            "address of the message broker (amqp://..., rocketmq://...); empty: the directory's own"
        ),
    ] = ""
    broker_file: Annotated[str, About("file that holds the address of the broker")] = ""
    database: Annotated[
        str, About("address of a PostgreSQL ledger (postgresql://...); empty: the directory's file")
    ] = ""
    database_file: Annotated[str, About("file that holds the address of the ledger")] = ""
    database_schema: Annotated[
        str, About("PostgreSQL schema of the ledger's tables; empty: the first of the search path")
    ] = ""
    objects: Annotated[
        str,
        About(
            "object store (s3://bucket/prefix?endpoint=..., file:///folder) that both sides share"
        ),
    ] = ""
    log_level: Annotated[str, About("lowest level that is logged")] = "INFO"
    log_json: Annotated[bool, About("log one JSON object a line")] = False
    hints: Annotated[
        bool, About("wake other processes at once; off leaves everything to scans")
    ] = True

    hints_over: Annotated[
        str,
        About("what carries hints: broker (RabbitMQ); empty: the ledger's directory or database"),
    ] = ""
    lease_seconds: Annotated[
        float, Gt(0), About("how long a host's heartbeat may stand still before it is released")
    ] = 30.0
    heartbeat_seconds: Annotated[
        float, Gt(0), About("between two beats of a host; well below the lease")
    ] = 5.0
    sweep_seconds: Annotated[
        float, Gt(0), About("between two looks at the locks of other hosts")
    ] = 0.25
    grace_seconds: Annotated[
        float,
        Ge(0),
        About(
            "how long a Hands host with a lost lock and a fresh heartbeat may take its lock again"
        ),
    ] = 5.0
    scan_seconds: Annotated[
        float, Gt(0), About("between two scans that find what a lost hint left behind")
    ] = 1.0
    frozen_writer_seconds: Annotated[
        float, Gt(0), About("wait for a write lock before its holder is named, and dealt with")
    ] = 5.0

    inquiry_silence_seconds: Annotated[
        float, Gt(0), About("silence after which Brain asks Hands about an execution")
    ] = 5.0
    inquiry_most_seconds: Annotated[
        float, Gt(0), About("longest time between two questions about one execution")
    ] = 300.0
    admission_report_seconds: Annotated[
        float, Gt(0), About("admission is reported when no terminal update followed within")
    ] = 1.0
    repeat_first_seconds: Annotated[
        float, Gt(0), About("first wait before an unconfirmed command is repeated; then doubling")
    ] = 5.0
    repeat_most_seconds: Annotated[
        float, Gt(0), About("longest wait between two repeats of a command")
    ] = 300.0
    admit_within_seconds: Annotated[
        float, Gt(0), About("a command older than this is refused and renewed under the same id")
    ] = 3600.0

    retention_seconds: Annotated[
        float, Gt(0), About("between two walks through what may be forgotten")
    ] = 3600.0
    keep_events_days: Annotated[
        float, Ge(0), About("public events of ended Turns; history stays; 0: for ever")
    ] = 90.0
    keep_details_days: Annotated[
        float, Ge(0), About("Runs, Steps, receipts and applied calls of ended Turns; 0: for ever")
    ] = 90.0
    keep_checkpoints_days: Annotated[
        float, Ge(0), About("checkpoints of closed Threads; 0: for ever")
    ] = 30.0
    keep_observations_days: Annotated[
        float, Ge(0), About("what was heard too late or of another ledger; 0: for ever")
    ] = 90.0
    keep_decisions_days: Annotated[
        float, Ge(0), About("decisions about outcomes that were UNKNOWN; 0: for ever")
    ] = 365.0
    keep_quarantined_days: Annotated[
        float, Ge(0), About("envelopes that were set aside for a person; 0: for ever")
    ] = 90.0
    keep_hosts_days: Annotated[float, Ge(0), About("hosts that were released; 0: for ever")] = 7.0

    hands_slots: Annotated[int, Gt(0), About("tools that run at once in one Hands process")] = 64
    hands_backlog: Annotated[
        int, Gt(0), About("commands a Hands process may admit beyond its free slots")
    ] = 256
    hands_tenant_slots: Annotated[
        int,
        Ge(0),
        About("tools of one namespace that run at once in one Hands process; 0: no limit"),
    ] = 0
    brain_slots: Annotated[int, Gt(0), About("Turns that run at once in one Brain process")] = 256
    tool_threads: Annotated[int, Gt(0), About("threads for synchronous tools")] = 16

    envelope_bytes_max: Annotated[
        int, Gt(0), Le(16 * 1024 * _KIB), About("largest envelope on the wire")
    ] = 1024 * _KIB
    envelope_inline_bytes_max: Annotated[
        int, Gt(0), About("from this size on a body goes to the object store")
    ] = 256 * _KIB
    bundle_envelopes_max: Annotated[int, Gt(0), Le(1024), About("envelopes in one bundle")] = 64
    bundle_bytes_max: Annotated[int, Gt(0), About("bytes in one bundle")] = 256 * _KIB
    result_bytes_max: Annotated[int, Gt(0), About("largest tool result that is stored")] = (
        4096 * _KIB
    )
    arguments_bytes_max: Annotated[
        int, Gt(0), About("largest arguments of one tool call, where there is an object store")
    ] = 4096 * _KIB
    object_bytes_max: Annotated[int, Gt(0), About("largest object that is stored")] = (
        64 * 1024 * _KIB
    )

    object_grace_seconds: Annotated[
        float, Gt(0), About("how long an object that nothing refers to is kept")
    ] = 3600.0

    publish_seconds: Annotated[
        float, Gt(0), About("deadline of one publish; afterwards it is sent again")
    ] = 10.0
    broker_poll_seconds: Annotated[
        float, Gt(0), About("between two looks into an idle queue when hints were lost")
    ] = 1.0
    ack_seconds: Annotated[
        float, Ge(0), About("how long acknowledgements are gathered before they are written")
    ] = 0.02
    outbox_resend_seconds: Annotated[
        float, Gt(0), About("age from which a relay sends its own unconfirmed rows again")
    ] = 5.0
    inbox_tries_max: Annotated[
        int, Gt(0), About("tries of one envelope before it is quarantined")
    ] = 5

    stall_seconds: Annotated[
        float, Gt(0), About("how long the event loop may stand still before /live says no")
    ] = 60.0
    drain_seconds: Annotated[
        float, Ge(0), About("how long a host finishes what it has when asked to stop")
    ] = 30.0
    close_seconds: Annotated[float, Gt(0), About("how long a forced close waits for one part")] = (
        5.0
    )
    lock_wait_seconds: Annotated[
        float, Gt(0), About("how long one write may wait for the ledger's lock")
    ] = 10.0


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One line of `nerve doctor`."""

    name: str
    variable: str
    value: object
    default: object
    about: str


def load(**overrides: object) -> Settings:
    """Defaults, then `NERVE_*` from the environment, then `overrides` (what the command line said)."""
    from pydantic import ValidationError, create_model
    from pydantic_settings import BaseSettings, SettingsConfigDict

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    hints = get_type_hints(Settings, include_extras=True)
    fields = {
        field.name: (hints[field.name], field.default) for field in dataclasses.fields(Settings)
    }
    # create_model is typed for literal keyword arguments only; the fields are those of `Settings`.
    model = cast(Any, create_model)("Environment", __base__=Environment, **fields)
    unknown = sorted(set(overrides) - set(fields))
    if unknown:
        raise ValueError(f"there is no setting {unknown[0]!r}; `nerve doctor` lists them")
    try:
        values = cast("BaseSettings", model(**overrides)).model_dump()
    except ValidationError as error:
        raise ValueError(_first_problem(error.errors())) from None
    return _checked(Settings(**values))


def describe(settings: Settings) -> Iterator[Shown]:
    """Every setting with its value, its default and its sentence."""
    hints = get_type_hints(Settings, include_extras=True)
    for field in dataclasses.fields(Settings):
        about = next(extra for extra in get_args(hints[field.name]) if isinstance(extra, About))
        yield Shown(
            name=field.name,
            variable=PREFIX + field.name.upper(),
            value=getattr(settings, field.name),
            default=field.default,
            about=about.text,
        )


def _checked(settings: Settings) -> Settings:
    if settings.heartbeat_seconds * 3 > settings.lease_seconds:
        raise ValueError(
            f"NERVE_HEARTBEAT_SECONDS={settings.heartbeat_seconds:g} is too long for a lease of "
            f"{settings.lease_seconds:g} s; make it at most a third of NERVE_LEASE_SECONDS"
        )
    if settings.envelope_inline_bytes_max > settings.envelope_bytes_max:
        raise ValueError(
            "NERVE_ENVELOPE_INLINE_BYTES_MAX is larger than NERVE_ENVELOPE_BYTES_MAX; lower it"
        )
    return _with_addresses(settings)


def _with_addresses(settings: Settings) -> Settings:
    """Secrets may come from files, as container engines hand them over; an address itself goes first."""
    found: dict[str, Any] = {
        name: _read(f"{PREFIX}{name}_file".upper(), getattr(settings, f"{name}_file"))
        for name in FROM_FILES
        if getattr(settings, f"{name}_file") and not getattr(settings, name)
    }
    return dataclasses.replace(settings, **found) if found else settings


def _read(variable: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise ValueError(f"{variable}={path}: {error.strerror or error}") from None


def _first_problem(errors: list[Any]) -> str:
    problem = errors[0]
    variable = PREFIX + str(problem["loc"][0]).upper()
    return f"{variable}={problem['input']!r}: {problem['msg']}; unset it for the default"
