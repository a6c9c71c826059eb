"""Every marker names something that exists: a clause, a report, a rule or a law."""

import ast
from collections.abc import Iterator
from pathlib import Path

from support.capabilities import DOCUMENTS, KINDS, numbered

ROOT = Path(__file__).parent.parent
LAWS = range(1, 13)


def known() -> dict[str, set[object]]:
    """The ids of each kind, as a marker writes them: rules and laws by number."""
    written = {kind: numbered(ROOT / path) for kind, path in DOCUMENTS.items()}
    return {
        "capability": set(written["capability"]),
        "report": set(written["report"]),
        "rule": set(map(int, written["rule"])),
        "law": set(LAWS),
    }


def claims() -> Iterator[tuple[str, str, object]]:
    """Place, kind and id of each claim written in a test module."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=mark, attr=kind), args=ids) if (
                    kind in KINDS and ast.unparse(mark) == "pytest.mark"
                ):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield from ((place, kind, literal(each)) for each in ids)
                case _:
                    pass


def literal(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def test_every_claim_names_a_numbered_promise() -> None:
    ids = known()
    assert [claim for claim in claims() if claim[2] not in ids[claim[1]]] == []
