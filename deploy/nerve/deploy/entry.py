"""One run of the command line, from arguments to an exit code; nothing that goes wrong is a traceback."""

import os
import sys
import traceback
from collections.abc import Sequence

from nerve.deploy.output import error_line, mismatch_lines
from nerve.deploy.stop import INTERRUPTED

USAGE = 2


def run(arguments: Sequence[str]) -> int:
    """Run one command and say in a sentence what went wrong, if anything did."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        return _called(arguments)
    except BrokenPipeError:
        return _unread()
    except SystemExit as ended:
        # How Typer ends when nobody reads what it prints.
        if isinstance(ended.__context__, BrokenPipeError):
            return _unread()
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _failed(error, as_json="--json" in arguments)


def _called(arguments: Sequence[str]) -> int:
    from nerve.deploy.commands import app

    try:
        code = app(args=list(arguments), prog_name="nerve", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is not None:
            return _usage(error, str(usage()), as_json="--json" in arguments)
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from error
        raise
    return code if isinstance(code, int) else 0


def _unread() -> int:
    """Whoever read our output has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _usage(error: Exception, text: str, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "nerve")
    if not text:
        # Called without a command: the help was printed.
        return USAGE
    sentence = text.rstrip(".")
    print(
        error_line("usage", sentence, f"`{command} --help` tells what it takes", as_json=as_json),
        file=sys.stderr,
    )
    return USAGE


def _failed(error: Exception, *, as_json: bool) -> int:
    if os.environ.get("NERVE_DEBUG"):
        traceback.print_exception(error)
    from nerve.protocol.errors import NerveError

    if isinstance(error, NerveError):
        line = error_line(error.code, str(error), "", as_json=as_json, body=error.to_json())
        print(line, file=sys.stderr)
        if not as_json:
            print(*mismatch_lines(error.details), sep="\n", end="", file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError):
        place = f" {error.filename}" if error.filename else ""
        what = f"{error.strerror or error}{place}".strip()
        print(
            error_line("io", what, "Name another place, or mend its permissions", as_json=as_json),
            file=sys.stderr,
        )
        return 6
    print(_unexpected(error, as_json=as_json), file=sys.stderr)
    return 1


def _unexpected(error: Exception, *, as_json: bool) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return error_line(
        "internal",
        f"nerve itself failed{place}: {type(error).__name__}: {error}",
        "Run it again with NERVE_DEBUG=1 for the details, and report them",
        as_json=as_json,
    )
