"""Whatever bytes come, reading them ends in a value or in an error of our tree: nothing loops, nothing crashes."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nerve.protocol.canonical import read_strict
from nerve.protocol.catalog import Catalog
from nerve.protocol.envelope import open_envelope
from nerve.protocol.errors import NerveError
from support.hands_world import Asker

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)
)


def made() -> tuple[Asker, dict[str, Any]]:
    catalog = Catalog()

    @catalog.tool
    async def echo(word: str) -> str:
        return word

    asker = Asker(catalog)
    return asker, json.loads(asker.seal(asker.call("echo", word="x")))


ASKER, FIELDS = made()
PLACES = sorted(FIELDS) + [f"body.{name}" for name in sorted(FIELDS["body"])]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(NerveError):
        read_strict(raw)
    with pytest.raises(NerveError):
        open_envelope(raw)


@pytest.mark.law(10)
@pytest.mark.report("U107", "U110")
@given(VALUES, st.sampled_from(PLACES), st.booleans())
def test_an_envelope_with_any_value_in_any_place_is_opened_or_refused(
    value: Any, place: str, spaced: bool
) -> None:
    fields = json.loads(json.dumps(FIELDS))
    outer, _, inner = place.partition(".")
    if inner:
        fields["body"][inner] = value
    else:
        fields[outer] = value
    raw = json.dumps(fields, sort_keys=True, separators=None if spaced else (",", ":"))
    with contextlib.suppress(NerveError):
        open_envelope(raw.encode())
