"""The shipped schemas are what the models say, and judge documents as the models do."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.samples import samples, sealed
from nerve.protocol.canonical import canonical_bytes, digest
from nerve.protocol.envelope import Kind, open_envelope
from nerve.protocol.errors import NerveError
from nerve.protocol.schema import documents, folder, read_schema
from nerve.protocol.schema.__main__ import main, stale

SAMPLES = samples()
# Any: the validator's own types are incomplete.
VALIDATORS: dict[str, Any] = {
    str(kind): jsonschema.Draft202012Validator(read_schema(str(kind))) for kind in Kind
}
HOSTILE: list[Any] = [None, True, -1, 0, 2**53 - 1, 1.5, "", "x", "STARTED", "none", [], {}, [{}]]


@pytest.mark.capability("E8.1")
def test_the_shipped_schemas_are_what_the_models_say() -> None:
    assert stale() == []
    assert main(["--check"]) == 0


@pytest.mark.capability("E8.1")
def test_every_kind_has_a_valid_versioned_schema() -> None:
    names = {path.stem for path in folder().glob("*.json")}
    assert set(Kind) < names
    for name in names - {"asyncapi"}:
        schema = read_schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"urn:nerve.execution:1:{name}"
        assert schema["x-version"] == "1.0"


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_sample_fits_its_schema(name: str) -> None:
    made = sealed(SAMPLES[name])
    VALIDATORS[made.kind].validate(json.loads(made.raw))


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON tree, outer ones first."""
    keys: list[Any] = list(value) if value.__class__ is dict else list(range(len(value)))
    inside = [key for key in keys if isinstance(value[key], dict | list)]
    inner = [path for key in inside for path in paths(value[key], (*above, key))]
    return [(*above, key) for key in keys] + inner


@given(st.data())
def test_schema_and_model_give_one_verdict_about_a_damaged_message(data: st.DataObject) -> None:
    made = sealed(SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))])
    document = json.loads(made.raw)
    *above, last = data.draw(st.sampled_from(paths(document)))
    target = document
    for step in above:
        target = target[step]
    change = data.draw(st.sampled_from(["drop", "add", *HOSTILE]))
    if change == "drop":
        del target[last]
    elif change == "add":
        target["zz" if isinstance(target, dict) else last] = 1
    else:
        target[last] = change
    if "body" in document:
        document["digest"] = digest(document["body"])
    if is_cross_field(document, made.kind):
        return
    fits = VALIDATORS[made.kind].is_valid(document)
    assert opens(document) == fits, document


def opens(document: dict[str, Any]) -> bool:
    try:
        open_envelope(canonical_bytes(document))
    except NerveError:
        return False
    return True


def is_cross_field(document: dict[str, Any], kind: Kind) -> bool:
    """What no schema says: agreement of header and body, of pages with their bytes, of effects."""
    if not isinstance(document.get("body"), dict) or kind is Kind.OUTPUT_PAGE:
        return True
    body: dict[str, Any] = document["body"]
    same = document.get("execution") == body.get("execution", "")
    sequence = document.get("sequence") == (
        body.get("sequence", 0) if kind in (Kind.EXECUTION, Kind.SNAPSHOT) else 0
    )
    version = document.get("version") == "1.0"
    stated = kind in (Kind.EXECUTION, Kind.SNAPSHOT)
    return not (same and sequence and version) or stated


def test_the_asyncapi_document_names_every_message_once() -> None:
    document = read_schema("asyncapi")
    named = [name for channel in document["channels"].values() for name in channel["messages"]]
    assert sorted(named) == sorted(Kind) == sorted(document["components"]["messages"])


def test_a_stale_schema_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(documents()) == {path.name for path in folder().glob("*.json")}
    assert main(["--what"]) == 2
    assert "usage" in capsys.readouterr().err
