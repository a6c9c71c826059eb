"""JSON Schemas of everything on the wire, generated from the models and shipped as data."""

from nerve.protocol.schema.documents import documents, folder, read_schema

__all__ = ["documents", "folder", "read_schema"]
