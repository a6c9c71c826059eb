"""Load a user's file: its agents and catalogs, and where in it something is wrong."""

import difflib
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

from nerve.brain.harness import Definition, Harness
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import BadInput, NerveError, NotFound

_DATA = frozenset((".yaml", ".yml", ".json", ".toml"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What one file offers. `files` are those that made it what it is."""

    path: Path
    agents: Sequence[Harness]
    catalogs: Sequence[Catalog]
    files: Sequence[Path]

    def routes(self) -> tuple[str, ...]:
        """Routes for which there are functions here."""
        merged = self._merged()
        found = {
            each.route for each in merged.bindings() if merged.has_function(each.name, each.version)
        }
        return tuple(sorted(found - {"local"}))

    def catalog(self, route: str | None = None) -> Catalog:
        """Every tool of the file in one catalog, for a Hands host of `route`.

        Raises:
            NotFound: no function of the file has that route; names the nearest one.
            BindingMismatch: two catalogs have different tools under one name and version.
        """
        routes = self.routes()
        if route is None or route in routes:
            return self._merged()
        near = difflib.get_close_matches(route, routes, n=1)
        known = ", ".join(routes) or "none"
        raise NotFound(
            f"{self.path.name} has no tools for the route {route!r}",
            where="--route",
            next_step=f"Did you mean {near[0]}?" if near else f"Its routes are: {known}",
        )

    def only_route(self) -> str:
        """The route where there is just one. Raises BadInput."""
        routes = self.routes()
        if len(routes) == 1:
            return routes[0]
        if routes:
            raise BadInput(
                f"{self.path.name} has tools for several routes: {', '.join(routes)}",
                where="--route",
                next_step=f"Name one, for instance --route {routes[0]}",
            )
        raise NotFound(
            f"{self.path.name} has no tools",
            where=str(self.path),
            next_step="Make a Catalog in it and add functions with @catalog.tool",
        )

    def need_agents(self) -> Sequence[Harness]:
        if self.agents:
            return self.agents
        raise NotFound(
            f"{self.path.name} has no agent",
            where=str(self.path),
            next_step="Make one at its top level: agent = ReactAgent(...)",
        )

    def _merged(self) -> Catalog:
        merged = Catalog()
        for catalog in self.catalogs:
            merged = merged.merge(catalog)
        return merged


def load(path: Path) -> App:
    """Run the file and look at its top level.

    Raises:
        NotFound: there is no such file.
        BadInput: it does not run; names the file and line.
    """
    file = path.absolute()
    if not file.is_file():
        raise _absent(path)
    folder = file.parent
    _forget(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    if file.stem not in sys.modules:
        sys.modules[file.stem] = module
    _run(module, file)
    values = list({id(value): value for value in vars(module).values()}.values())
    return App(
        path=file,
        agents=[value for value in values if _is_agent(value)],
        catalogs=[value for value in values if isinstance(value, Catalog)],
        files=sorted({file, *_modules_below(folder), *_data_beside(folder)}),
    )


def _run(module: ModuleType, file: Path) -> None:
    # Compiled here and not imported: byte code on disk may be older than an edit within one second.
    old, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _does_not_run(error, file) from error
    finally:
        sys.dont_write_bytecode = old


def _does_not_run(error: BaseException, file: Path) -> BadInput:
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        shown = f"{error.msg}: {line}" if line else error.msg
        return BadInput(
            f"{Path(error.filename).name}:{error.lineno}: SyntaxError: {shown}",
            details={"file": error.filename, "line": error.lineno},
        )
    name, number = _line_in(error, file)
    what = str(error) if isinstance(error, NerveError) else f"{type(error).__name__}: {error}"
    advice = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        advice = f"Install what provides {error.name.partition('.')[0]} in this environment"
    return BadInput(
        f"{Path(name).name}:{number}: {what.rstrip('.')}",
        next_step=advice,
        details={"file": name, "line": number},
    )


def _line_in(error: BaseException, file: Path) -> tuple[str, int]:
    """The innermost line of the user's own files that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename, file.parent)]
    return (own[-1].filename, own[-1].lineno or 1) if own else (str(file), 1)


def _is_own(filename: str, folder: Path) -> bool:
    path = Path(filename)
    if not path.is_relative_to(folder) or "site-packages" in path.parts:
        return False
    library = Path(sysconfig.get_path("stdlib"))
    return not path.is_relative_to(library) and not path.is_relative_to(Path(__file__).parent)


def _is_agent(value: Any) -> bool:
    return isinstance(getattr(value, "definition", None), Definition) and hasattr(value, "advance")


def _forget(folder: Path) -> None:
    """Modules of the user's folder are imported anew."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("nerve", "__main__") and _file_of(module, folder):
            del sys.modules[name]


def _modules_below(folder: Path) -> Iterator[Path]:
    for name, module in list(sys.modules.items()):
        file = _file_of(module, folder)
        if file is not None and name.partition(".")[0] not in ("nerve", "__main__"):
            yield file


def _file_of(module: Any, folder: Path) -> Path | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not _is_own(file, folder):
        return None
    return Path(file)


def _data_beside(folder: Path) -> Iterator[Path]:
    """Scripts and settings that the file may read."""
    for entry in folder.iterdir():
        if entry.suffix in _DATA and not entry.name.startswith("."):
            yield entry


def _absent(path: Path) -> NotFound:
    folder = path.parent
    names = [each.name for each in folder.glob("*.py")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.4)
    if path.is_dir():
        names = [each.name for each in path.glob("*.py")]
        near = [f"{path.name}/{name}" for name in names if name == "app.py"] or near
    return NotFound(
        f"there is no file {path}",
        where=str(path),
        next_step=f"Did you mean {folder / near[0]}?" if near else "`nerve init NAME` makes one",
    )
