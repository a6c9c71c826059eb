"""The house rules that no linter knows: top level, namespace, docstrings, sizes, one clock."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("protocol", "common", "brain", "hands", "deploy")
TOP_LEVEL = {
    *ROOMS,
    *("tests", "docs", "examples"),
    *("pyproject.toml", "Makefile", "README.md", "LICENSE"),
}
GENERATED = {"build", "dist"}
VAGUE = {"utils", "util", "helpers", "helper", "manager", "base", "misc"}
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
CLOCK = ROOT / "common/nerve/common/clock.py"
CLOCK_READS = {
    *(("time", name) for name in ("time", "time_ns", "monotonic", "monotonic_ns")),
    *(("datetime", name) for name in ("now", "utcnow", "today")),
}


def room_modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room / "nerve").rglob("*.py"))]


def all_modules() -> list[Path]:
    return [*room_modules(), *sorted((ROOT / "tests").rglob("*.py"))]


def sized_modules() -> list[Path]:
    """All but migrations: what those did to a ledger stays as it was written."""
    return [path for path in all_modules() if path.parent.name != "versions"]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_the_top_level_holds_exactly_the_named_entries() -> None:
    present = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert present - GENERATED == TOP_LEVEL


def test_nerve_is_a_namespace_that_no_room_owns() -> None:
    assert [place(path) for path in ROOT.glob("*/nerve/__init__.py")] == []


def test_each_room_holds_one_typed_package_of_its_own_name() -> None:
    for room in ROOMS:
        packages = [path.name for path in (ROOT / room / "nerve").iterdir() if path.suffix == ""]
        assert [name for name in packages if name != "__pycache__"] == [room]
        assert (ROOT / room / "nerve" / room / "__init__.py").is_file()
        assert (ROOT / room / "nerve" / room / "py.typed").read_bytes() == b""


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in room_modules()}
    assert [place(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_module_says_which_duty_lives_in_it() -> None:
    silent = [path for path in all_modules() if not ast.get_docstring(parse(path))]
    assert [place(path) for path in silent] == []


def test_no_module_is_longer_than_the_limit() -> None:
    long = [path for path in sized_modules() if line_count(path) > MODULE_LINES_MAX]
    assert [f"{place(path)} has {line_count(path)} lines" for path in long] == []


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_function_is_longer_than_the_limit() -> None:
    lengths = [
        (place(path, function.lineno), function.name, length_without_docstring(function))
        for path in sized_modules()
        for function in functions(parse(path))
    ]
    assert [entry for entry in lengths if entry[2] > FUNCTION_LINES_MAX] == []


def test_a_package_face_only_re_exports() -> None:
    defined = [
        f"{place(path, node.lineno)} {node.name}"
        for path in room_modules()
        if path.name == "__init__.py"
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name not in {"__getattr__", "__dir__"}
    ]
    assert defined == []


def test_modules_have_the_name_of_a_thing_or_a_duty() -> None:
    assert [place(path) for path in room_modules() if path.stem.strip("_") in VAGUE] == []


def test_only_the_clock_module_reads_a_clock() -> None:
    reads = [
        place(path, line)
        for path in room_modules()
        if path != CLOCK
        for line in clock_reads(parse(path))
    ]
    assert reads == []


def clock_reads(tree: ast.Module) -> Iterator[int]:
    """The lines where a module takes the time by itself."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in CLOCK_READS:
                yield node.lineno
            case ast.ImportFrom(module="time", names=names):
                if any(("time", alias.name) in CLOCK_READS for alias in names):
                    yield node.lineno
            case _:
                pass
