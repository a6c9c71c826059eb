"""What is sealed is what is opened; whatever else arrives is refused by name and never half-read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.samples import EXECUTION, NOW, samples, sealed, start
from nerve.protocol import canonical
from nerve.protocol.canonical import canonical_bytes, digest
from nerve.protocol.envelope import (
    BUNDLE_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    Body,
    Kind,
    bundle,
    bundles,
    open_envelope,
    seal,
    unbundle,
)
from nerve.protocol.errors import (
    BadInput,
    DigestMismatch,
    InvalidJSON,
    NerveError,
    ProtocolVersion,
    TooLarge,
    UnknownField,
)
from nerve.protocol.identity import new_uuid7
from nerve.protocol.objects import ObjectRef
from nerve.protocol.version import BUILT, CURRENT, Version, parse_version

SAMPLES = sorted(samples().items())
NEWER = Version(BUILT.major, BUILT.minor + 1)


def fields_of(body: Body | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(sealed(body or start()).raw)
    return fields


def raw_of(fields: dict[str, Any], *, redigest: bool = True) -> bytes:
    if redigest and "body" in fields:
        fields["digest"] = digest(fields["body"])
    return canonical_bytes(fields)


@pytest.mark.parametrize(("name", "body"), SAMPLES, ids=[name for name, _ in SAMPLES])
def test_every_message_opens_as_it_was_sealed(name: str, body: Body) -> None:
    made = sealed(body)
    opened = open_envelope(made.raw)
    assert opened == made
    assert opened.body == body
    assert opened.trace["traceparent"].startswith("00-")
    assert made.raw == canonical_bytes(json.loads(made.raw))


@pytest.mark.parametrize(("name", "body"), SAMPLES, ids=[name for name, _ in SAMPLES])
def test_a_build_without_orjson_seals_and_opens_the_same_bytes(
    name: str, body: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = sealed(body)
    monkeypatch.setattr(canonical, "orjson", None)
    assert sealed(body).raw == fast.raw
    assert open_envelope(fast.raw).body == body


def test_every_kind_has_a_sample() -> None:
    assert {sealed(body).kind for _, body in SAMPLES} == set(Kind)


def test_execution_and_sequence_of_the_header_follow_from_the_body() -> None:
    made = sealed(samples()["update.snapshot"])
    assert (made.execution, made.sequence) == (EXECUTION, 3)
    assert sealed(samples()["control.route_query"]).execution == ""
    assert sealed(samples()["control.settled"]).sequence == 0


def test_sealing_twice_gives_two_ids_and_one_digest() -> None:
    made = [
        seal(body=start(), deployment="dev", namespace="acme", route="hands", issued_at=NOW)
        for _ in range(2)
    ]
    assert made[0].id != made[1].id
    assert made[0].digest == made[1].digest


def test_a_body_under_another_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="is no"):
        seal(
            body=start(),
            kind=Kind.QUERY,
            deployment="dev",
            namespace="acme",
            route="hands",
            issued_at=NOW,
        )


@pytest.mark.parametrize(
    "change",
    [
        {"deployment": "Dev"},
        {"namespace": "a/b"},
        {"route": "../x"},
        {"issued_at": -1},
        {"id": "no uuid"},
        {"trace": {"traceparent": "x" * 600}},
        {"trace": {"traceparent": "\x00"}},
    ],
)
def test_a_header_that_nobody_could_open_is_not_sealed(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"deployment": "dev", "namespace": "acme", "route": "hands"}
    fields["issued_at"] = NOW
    with pytest.raises(BadInput):
        seal(body=start(), **(fields | change))


def test_a_message_in_another_spelling_is_read_and_kept_in_canonical_form() -> None:
    loose = json.dumps(fields_of(), indent=2, ensure_ascii=True).encode()
    opened = open_envelope(loose)
    assert opened.raw == sealed(start()).raw
    assert b"\n" not in opened.raw


@pytest.mark.report("U59")
@pytest.mark.parametrize("place", ["", "body"])
def test_an_unknown_field_of_our_own_version_is_refused(place: str) -> None:
    fields = fields_of()
    (fields["body"] if place else fields)["surprise"] = 1
    with pytest.raises(UnknownField, match="surprise") as caught:
        open_envelope(raw_of(fields))
    assert "surprise" in caught.value.where


@pytest.mark.report("U59")
def test_a_changed_body_is_refused() -> None:
    fields = fields_of()
    fields["body"]["arguments"]["city"] = "Bergen"
    with pytest.raises(DigestMismatch, match="the envelope says"):
        open_envelope(raw_of(fields, redigest=False))


@pytest.mark.report("U59")
def test_a_second_message_in_one_envelope_is_refused() -> None:
    with pytest.raises(InvalidJSON, match="trailing"):
        open_envelope(sealed(start()).raw * 2)


def test_a_duplicate_key_is_refused_though_both_values_agree() -> None:
    raw = sealed(start()).raw
    with pytest.raises(InvalidJSON, match="duplicate"):
        open_envelope(raw[:-1] + b',"version":"1.0"}')


@pytest.mark.parametrize("end", [0, 1, 10, 200, -1])
def test_a_truncated_envelope_is_refused(end: int) -> None:
    with pytest.raises(InvalidJSON):
        open_envelope(sealed(start()).raw[:end])


@pytest.mark.parametrize(
    "change",
    [{"execution": EXECUTION[:-1] + "2"}, {"execution": ""}, {"sequence": 4}],
)
def test_a_header_that_contradicts_its_body_is_refused(change: dict[str, Any]) -> None:
    fields = fields_of(samples()["update.snapshot"]) | change
    with pytest.raises(BadInput, match="is not the body's"):
        open_envelope(raw_of(fields))


@pytest.mark.parametrize("text", ["[]", "1", '"text"', "null", "{}"])
def test_json_that_is_no_envelope_is_refused(text: str) -> None:
    with pytest.raises(NerveError):
        open_envelope(text.encode())


def test_an_envelope_without_a_body_is_refused() -> None:
    fields = fields_of()
    del fields["body"]
    with pytest.raises(BadInput, match="no body"):
        open_envelope(canonical_bytes(fields))


@pytest.mark.report("U50")
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_with_an_error_of_ours(raw: bytes) -> None:
    with pytest.raises(NerveError) as caught:
        open_envelope(raw)
    str(caught.value).encode()


@given(st.data())
def test_no_single_changed_byte_of_a_body_passes(data: st.DataObject) -> None:
    raw = bytearray(sealed(start()).raw)
    end = raw.index(b',"deployment"')
    at = data.draw(st.integers(8, end - 1))
    raw[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != raw[at]))
    with pytest.raises(NerveError):
        open_envelope(bytes(raw))


@pytest.mark.capability("E8.3")
@pytest.mark.parametrize("name", [name for name, _ in SAMPLES])
def test_a_newer_minor_is_understood_and_what_it_added_is_ignored(name: str) -> None:
    body = samples()[name]
    newer = sealed(body, version=NEWER)
    assert json.loads(newer.raw)["body"]["x_since_minor"] == NEWER.minor
    opened = open_envelope(newer.raw)
    assert opened.body == body
    assert opened.version == str(NEWER)
    assert opened.raw == newer.raw


@pytest.mark.parametrize("name", [name for name, _ in SAMPLES])
def test_a_newer_build_reads_our_messages_and_its_own(name: str) -> None:
    body = samples()[name]
    for version in (BUILT, NEWER):
        assert open_envelope(sealed(body, version=version).raw, version=NEWER).body == body


@pytest.mark.capability("E8.3")
@pytest.mark.parametrize(("version", "who"), [("2.0", "this process"), ("0.9", "the sender")])
def test_another_major_is_refused_by_name_before_anything_is_read(version: str, who: str) -> None:
    fields = {"protocol": "nerve.execution", "version": version, "unlike": ["us"]}
    with pytest.raises(ProtocolVersion, match=f"version {version}") as caught:
        open_envelope(canonical_bytes(fields))
    assert f"Upgrade {who}" in caught.value.next_step


@pytest.mark.parametrize("version", ["1", "1.0.0", "1.x", "01.0", "", None, 1.5, "1.0\n"])
def test_a_version_that_is_none_is_refused(version: Any) -> None:
    with pytest.raises(ProtocolVersion):
        open_envelope(canonical_bytes(fields_of() | {"version": version}))


def test_another_protocol_is_refused_by_name() -> None:
    with pytest.raises(ProtocolVersion, match="'celery'"):
        open_envelope(canonical_bytes(fields_of() | {"protocol": "celery"}))


def test_a_kind_of_a_newer_minor_is_refused_as_not_known() -> None:
    fields = fields_of() | {"kind": "command.dream", "version": str(NEWER)}
    with pytest.raises(ProtocolVersion, match=r"command\.dream"):
        open_envelope(canonical_bytes(fields))


def test_unknown_fields_are_only_a_newer_minors_right() -> None:
    fields = fields_of() | {"x_since_minor": 1}
    with pytest.raises(UnknownField):
        open_envelope(canonical_bytes(fields))
    assert open_envelope(canonical_bytes(fields | {"version": str(NEWER)}))


def test_the_version_is_read_from_text_or_refused() -> None:
    assert parse_version("12.34") == Version(12, 34)
    with pytest.raises(ProtocolVersion):
        parse_version("twelve")


@pytest.mark.capability("E7.1")
def test_an_envelope_over_the_limit_is_refused_on_both_sides() -> None:
    large = start().model_copy(update={"arguments": {"text": "x" * ENVELOPE_BYTES_MAX}})
    with pytest.raises(TooLarge, match=str(ENVELOPE_BYTES_MAX)) as caught:
        sealed(large)
    assert caught.value.where == EXECUTION
    with pytest.raises(TooLarge):
        open_envelope(b" " * (ENVELOPE_BYTES_MAX + 1))


def test_an_envelope_of_almost_the_limit_passes() -> None:
    large = start().model_copy(update={"arguments": {"text": "x" * (ENVELOPE_BYTES_MAX - 2000)}})
    assert open_envelope(sealed(large).raw).body == large


def test_arguments_of_the_greatest_depth_pass_and_deeper_ones_are_never_sealed() -> None:
    deepest: Any = []
    for _ in range(63):
        deepest = [deepest]
    body = start().model_copy(update={"arguments": {"a": deepest}})
    assert open_envelope(sealed(body).raw).body == body
    for _ in range(40):
        deepest = [deepest]
    with pytest.raises(InvalidJSON, match="deep"):
        sealed(start().model_copy(update={"arguments": {"a": deepest}}))


def test_a_value_that_is_no_json_is_never_sealed() -> None:
    for value in (float("nan"), "\x00", "\ud800", 2**53):
        with pytest.raises(InvalidJSON):
            sealed(start().model_copy(update={"arguments": {"a": value}}))


def test_a_value_and_its_reference_exclude_each_other() -> None:
    ref = ObjectRef(scope="acme/s-1/x/arguments", digest=digest(b""), bytes=1)
    by_reference = start().model_copy(update={"arguments": {}, "arguments_ref": ref})
    opened = open_envelope(sealed(by_reference).raw)
    assert opened.body == by_reference
    assert by_reference.with_arguments({"a": 1}).arguments_ref is None
    both = sealed(start().model_copy(update={"arguments_ref": ref}))
    with pytest.raises(BadInput, match="not both"):
        open_envelope(both.raw)


def test_bundles_hold_at_most_64_envelopes_and_lose_none() -> None:
    raws = [sealed(start()).raw] * 150
    made = list(bundles(raws))
    assert [len(unbundle(each)) for each in made] == [64, 64, 22]
    assert [raw for each in made for raw in unbundle(each)] == raws


def test_a_large_envelope_is_a_bundle_of_its_own() -> None:
    small = sealed(start()).raw
    large = sealed(start().model_copy(update={"arguments": {"t": "x" * BUNDLE_BYTES_MAX}})).raw
    assert [len(unbundle(each)) for each in bundles([small, large, small])] == [1, 1, 1]
    assert unbundle(bundle([large])) == [large]
    with pytest.raises(TooLarge):
        bundle([small, large])
    with pytest.raises(TooLarge):
        bundle([small] * 65)


@given(st.lists(st.integers(1, BUNDLE_BYTES_MAX // 3), max_size=30))
def test_no_bundle_exceeds_its_limits(sizes: list[int]) -> None:
    raws = [b"x" * size for size in sizes]
    made = list(bundles(raws))
    assert [raw for each in made for raw in unbundle(each)] == raws
    assert all(len(each) <= BUNDLE_BYTES_MAX for each in made)


def test_ids_sort_by_the_time_of_their_making() -> None:
    assert new_uuid7(NOW) < new_uuid7(NOW + 1)


def test_the_current_version_is_the_built_one_unless_simulated() -> None:
    assert CURRENT == BUILT
