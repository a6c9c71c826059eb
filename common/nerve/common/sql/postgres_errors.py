"""What an error of PostgreSQL or of its driver means for a batch, and the words for it."""

import ssl
from enum import StrEnum

import asyncpg

from nerve.protocol.errors import DiskFull, LedgerUnavailable, NerveError

WHERE = "--database"


class Meaning(StrEnum):
    """AGAIN: the same batch may pass now. LOST: the connection is of no use. RACE: another host
    was first. REFUSED: this very content is not accepted."""

    AGAIN = "AGAIN"
    LOST = "LOST"
    RACE = "RACE"
    REFUSED = "REFUSED"


_AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    # A full disk, too little memory: it may pass, and nothing was committed.
    asyncpg.InsufficientResourcesError,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InFailedSQLTransactionError,
    asyncpg.InterfaceError,
    # What the driver says where a session ended in the middle of its own bookkeeping.
    asyncpg.InternalClientError,
    ssl.SSLError,
    OSError,
    TimeoutError,
)
_RACE = (asyncpg.UniqueViolationError, asyncpg.ExclusionViolationError)

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

UNREACHED = (*DRIVER_ERRORS, LedgerUnavailable)
"""Why a session could not be had, or went: also where a given pool has none that is free."""

COMING = (
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ConnectionDoesNotExistError,
    OSError,
    TimeoutError,
)
"""What a server says that is not up yet, or full."""


def meaning(error: BaseException) -> Meaning:
    if isinstance(error, asyncpg.QueryCanceledError):
        return Meaning.AGAIN
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return Meaning.REFUSED
    if isinstance(error, asyncpg.TooManyConnectionsError) or isinstance(error, _LOST):
        return Meaning.LOST
    if isinstance(error, _AGAIN):
        return Meaning.AGAIN
    return Meaning.RACE if isinstance(error, _RACE) else Meaning.REFUSED


def unavailable(error: BaseException, *, doing: str = "answer") -> NerveError:
    """The error of our tree for what went on too long. Its text names no value and no secret."""
    if isinstance(error, asyncpg.DiskFullError):
        return DiskFull(
            "the disk of the PostgreSQL server is full",
            where=WHERE,
            next_step="free space; nothing acknowledged is lost and admission starts again by itself",
        )
    return LedgerUnavailable(
        f"the PostgreSQL ledger did not {doing}: {said(error)}",
        where=WHERE,
        next_step="run `nerve doctor` to see what of it can be reached",
    )


def refused(error: BaseException) -> NerveError:
    return NerveError(
        f"the PostgreSQL ledger refused what a law wrote: {said(error)}",
        where=WHERE,
        next_step="nothing was written; report this: it is a defect of nerve",
    )


def said(error: BaseException) -> str:
    """Its kind and first line; a line that may quote a stored value stays out."""
    kind = type(error).__name__
    text = str(error).partition("\n")[0]
    quotes = isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in {"22", "23"}
    return kind if quotes or not text else f"{kind}: {text[:200]}"
