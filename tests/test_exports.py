"""`__all__` is the truth: each package lists its public names in order, and each of them resolves."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY_ROOMS = ("nerve.protocol", "nerve.brain", "nerve.hands")


def packages() -> list[str]:
    faces = [face.parent for face in sorted(ROOT.glob("*/nerve/**/__init__.py"))]
    return [".".join(folder.relative_to(ROOT).parts[1:]) for folder in faces]


def exports(package: str) -> list[str] | None:
    """The package's `__all__`, None where it has none and re-exports nothing."""
    module = importlib.import_module(package)
    return getattr(module, "__all__", None)


@pytest.mark.parametrize("package", packages())
def test_exports_are_sorted_unique_and_resolve(package: str) -> None:
    names = exports(package) or []
    assert names == sorted(set(names))
    module = importlib.import_module(package)
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", packages())
def test_a_package_that_re_exports_has_a_list(package: str) -> None:
    face = importlib.import_module(package).__file__
    assert face is not None
    statements = ast.parse(Path(face).read_text(encoding="utf-8")).body
    imports = [node for node in statements if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    assert exports(package) is not None or not {name for name in imported if name[0].isupper()}


@pytest.mark.parametrize("room", LIBRARY_ROOMS)
def test_each_library_room_has_a_public_face(room: str) -> None:
    assert exports(room)
