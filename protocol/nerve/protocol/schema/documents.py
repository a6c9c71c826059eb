"""Generates the shipped documents: a schema for each message, and one AsyncAPI description."""

import json
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from nerve.protocol.canonical import read_strict
from nerve.protocol.catalog import CatalogExport
from nerve.protocol.content import Message
from nerve.protocol.envelope import BODIES, Header, Kind
from nerve.protocol.events import PAYLOADS, PublicEvent
from nerve.protocol.execution import ExecutionResult
from nerve.protocol.version import BUILT, PROTOCOL

Schema = dict[str, Any]  # Any: JSON
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
PLAIN: Final = {
    "catalog": CatalogExport,
    "event": PublicEvent,
    "message": Message,
    "result": ExecutionResult,
}


def folder() -> Path:
    """Where the documents of this major version lie."""
    return Path(__file__).parent / PROTOCOL / str(BUILT.major)


def read_schema(name: str) -> Schema:
    """A shipped document, as `command.start` or `catalog`."""
    document = read_strict((folder() / f"{name}.json").read_bytes(), where=name)
    assert isinstance(document, dict)
    return document


def documents() -> dict[str, bytes]:
    """Every shipped file by its name, as the models are now."""
    made = {str(kind): _envelope(kind) for kind in Kind}
    made |= {name: _titled(name, _schema(model)) for name, model in PLAIN.items()}
    made["payloads"] = _payloads()
    made["asyncapi"] = _asyncapi()
    return {f"{name}.json": _written(document) for name, document in made.items()}


def _schema(model: type) -> Schema:
    schema: Schema = TypeAdapter(model).json_schema(mode="validation")
    return schema


def _titled(name: str, schema: Schema) -> Schema:
    head = {
        "$schema": DIALECT,
        "$id": f"urn:{PROTOCOL}:{BUILT.major}:{name}",
        "x-version": str(BUILT),
    }
    return head | schema | {"title": name}


def _envelope(kind: Kind) -> Schema:
    schema, body = _schema(Header), _schema(BODIES[kind])
    definitions = schema.pop("$defs", {}) | body.pop("$defs", {}) | {"Body": body}
    properties = schema["properties"]
    properties["kind"] = {"const": str(kind), "type": "string"}
    properties["body"] = {"$ref": "#/$defs/Body"}
    # A reader must not guess these: pydantic lets them be left out, the wire does not.
    schema["required"] = sorted({*schema["required"], "protocol", "body"})
    schema["$defs"] = definitions
    return _titled(str(kind), schema)


def _payloads() -> Schema:
    definitions: Schema = {}
    events: Schema = {}
    for kind, model in PAYLOADS.items():
        schema = _schema(model)
        definitions |= schema.pop("$defs", {}) | {model.__name__: schema}
        events[str(kind)] = {"$ref": f"#/$defs/{model.__name__}"}
    schema = {"$defs": definitions, "properties": events, "type": "object"}
    return _titled("payloads", schema)


_CHANNELS: Final = {
    "commands": ("nerve.{deployment}.{route}.commands", "Work asked of Hands."),
    "controls": ("nerve.{deployment}.{route}.controls", "Questions and wishes, apart from work."),
    "updates": ("nerve.{deployment}.updates.{cell}", "Facts for the Brain ledger that asked."),
}


def _asyncapi() -> Schema:
    """Seen from Brain: it sends commands and controls, and receives updates."""
    families: dict[str, list[Kind]] = {
        family: [kind for kind in Kind if kind.startswith(family.removesuffix("s") + ".")]
        for family in _CHANNELS
    }
    channels: Schema = {
        family: {
            "address": address,
            "description": text,
            "parameters": {name: {} for name in ("deployment", "route", "cell") if name in address},
            "messages": {
                str(kind): {"$ref": f"#/components/messages/{kind}"} for kind in families[family]
            },
        }
        for family, (address, text) in _CHANNELS.items()
    }
    operations = {
        family: {
            "action": "receive" if family == "updates" else "send",
            "channel": {"$ref": f"#/channels/{family}"},
        }
        for family in _CHANNELS
    }
    messages = {
        str(kind): {
            "name": str(kind),
            "contentType": "application/json",
            "payload": {"schemaFormat": f"{DIALECT}", "schema": {"$ref": f"./{kind}.json"}},
        }
        for kind in Kind
    }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": PROTOCOL, "version": str(BUILT), "description": _BUNDLES},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


_BUNDLES: Final = (
    "One delivery is a bundle: at most 64 envelopes in canonical JSON, each a message below, "
    "joined by a newline, and at most 256 KiB unless it is one envelope."
)


def _written(document: Schema) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
