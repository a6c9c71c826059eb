"""The object store port and the store that needs no server."""

from nerve.common.objects.files import FileObjects
from nerve.common.objects.port import OBJECT_BYTES_MAX, ObjectStore

__all__ = ["FileObjects", "OBJECT_BYTES_MAX", "ObjectStore"]
