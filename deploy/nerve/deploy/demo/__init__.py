"""`nerve demo`: an investigation that goes on while its processes are killed, and the proof of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nerve.deploy.demo.play import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # The children come through here as well, and need none of it.
    if name == "run":
        from nerve.deploy.demo.play import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
