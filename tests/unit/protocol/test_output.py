"""Output comes back bit by bit the same, and every hole in it says that it is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nerve.protocol.errors import Damaged, DigestMismatch, NerveError
from nerve.protocol.output import (
    Assembly,
    Encoding,
    OutputPage,
    PageKind,
    data_page,
    gap_page,
    pages_of,
    reset_page,
    seal_of,
)
from nerve.protocol.wire import parse_wire

EXECUTION = "t01hf7yat00fhxr0thxk8y2pnqm.x1"


@pytest.mark.report("U60")
@given(st.lists(st.binary(max_size=50)), st.integers(1, 7))
def test_binary_output_in_odd_pieces_is_read_back_the_same(
    chunks: list[bytes], page_bytes: int
) -> None:
    pages: list[OutputPage] = []
    for chunk in chunks:
        offset = pages[-1].end if pages else 0
        pages += pages_of(EXECUTION, 1, offset, chunk, page_bytes=page_bytes)
    read = [parse_wire(OutputPage, page.to_json(), "page") for page in pages]
    assert b"".join(page.bytes for page in read) == b"".join(chunks)
    Assembly(EXECUTION).check(seal_of(EXECUTION, 1, [])) if not read else None
    assembly = Assembly(EXECUTION)
    assert all(assembly.add(page) for page in read)
    assembly.check(seal_of(EXECUTION, 1, pages))


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1))
def test_text_stays_text_wherever_it_is_cut(text: str) -> None:
    pages = list(pages_of(EXECUTION, 1, 0, text.encode(), page_bytes=4))
    assert {page.encoding for page in pages} == {Encoding.UTF8}
    assert "".join(page.data or "" for page in pages) == text


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\x00b", b"\x80" * 10])
def test_what_is_no_storable_text_travels_as_base64(data: bytes) -> None:
    page = data_page(EXECUTION, 1, 0, data)
    assert (page.encoding, page.bytes, page.length) == (Encoding.BASE64, data, len(data))


def test_repeated_pages_change_nothing() -> None:
    page = data_page(EXECUTION, 1, 0, b"abc")
    assembly = Assembly(EXECUTION)
    assert [assembly.add(page) for _ in range(3)] == [True, False, False]
    assert assembly.seal() == seal_of(EXECUTION, 1, [page])


def test_a_hole_is_refused_with_the_offset_to_read_from() -> None:
    assembly = Assembly(EXECUTION)
    assembly.add(data_page(EXECUTION, 1, 0, b"abc"))
    with pytest.raises(Damaged, match="continues at 5, expected 3") as caught:
        assembly.add(data_page(EXECUTION, 1, 5, b"x"))
    assert "offset 3" in caught.value.next_step


def test_a_gap_counts_in_offsets_and_not_in_the_digest() -> None:
    kept = [data_page(EXECUTION, 1, 0, b"ab"), gap_page(EXECUTION, 1, 2, 100, "truncated")]
    kept.append(data_page(EXECUTION, 1, 102, b"cd"))
    seal = seal_of(EXECUTION, 1, kept)
    assert (seal.total_bytes, seal.gap_bytes) == (104, 100)
    assert seal.digest == seal_of(EXECUTION, 1, [data_page(EXECUTION, 1, 0, b"abcd")]).digest


@pytest.mark.rule(21)
def test_a_new_attempt_starts_over_and_pages_of_the_old_one_are_ignored() -> None:
    assembly = Assembly(EXECUTION)
    assembly.add(data_page(EXECUTION, 1, 0, b"old"))
    assert assembly.add(reset_page(EXECUTION, 2))
    assert not assembly.add(data_page(EXECUTION, 1, 3, b"late"))
    assert assembly.add(data_page(EXECUTION, 2, 0, b"new"))
    assert assembly.seal() == seal_of(EXECUTION, 2, [data_page(EXECUTION, 2, 0, b"new")])


def test_output_that_is_not_the_sealed_one_is_refused() -> None:
    assembly = Assembly(EXECUTION)
    assembly.add(data_page(EXECUTION, 1, 0, b"abc"))
    with pytest.raises(DigestMismatch):
        assembly.check(seal_of(EXECUTION, 1, [data_page(EXECUTION, 1, 0, b"abd")]))


@pytest.mark.parametrize(
    "change",
    [
        {"length": 2},
        {"data": "!!!"},
        {"encoding": "latin-1"},
        {"kind": "gap"},
        {"kind": "reset"},
        {"offset": -1},
        {"encoding": None},
        {"execution": "x"},
    ],
)
def test_a_page_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    page = data_page(EXECUTION, 1, 5, b"\xff\xff\xff").to_json() | change
    with pytest.raises(NerveError):
        parse_wire(OutputPage, page, "")


def test_gap_and_reset_hold_no_bytes() -> None:
    assert gap_page(EXECUTION, 1, 0, 5, "r").bytes == reset_page(EXECUTION, 2).bytes == b""
    assert reset_page(EXECUTION, 2).kind is PageKind.RESET
