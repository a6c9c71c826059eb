"""The pydantic settings and field types that every message on the wire shares."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError

from nerve.protocol.canonical import INTEGER_MAX, canonical_bytes
from nerve.protocol.errors import BadInput, InvalidName, NerveError, UnknownField


class Wire(BaseModel):
    """Frozen, strict, and closed: an unknown field is an error, never ignored."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def to_json(self) -> dict[str, Any]:
        """The JSON object that travels; an absent value leaves its field out."""
        return self.__pydantic_serializer__.to_python(  # type: ignore[no-any-return]
            self, mode="json", exclude_none=True
        )


Model = TypeVar("Model", bound=Wire)

Count = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Ordinal = Annotated[int, Field(ge=1, le=INTEGER_MAX)]
Millis = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Code = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
REASON_MAX: Final = 4096
Reason = Annotated[str, StringConstraints(max_length=REASON_MAX)]


def parse_wire(
    model: type[Model],
    value: JsonValue | Mapping[str, Any] | bytes,
    where: str,
    *,
    tolerant: bool = False,
) -> Model:
    """A model from its JSON (bytes must have been read strictly before).

    `tolerant` ignores unknown fields, which only a message of a newer minor version may have.
    """
    data = value if isinstance(value, bytes) else canonical_bytes(value)
    try:
        return model.model_validate_json(data, extra="ignore" if tolerant else "forbid")
    except ValidationError as error:
        raise refused(error, where) from None


def refused(error: ValidationError, where: str) -> NerveError:
    """The first fault of a validation, naming its field and never showing its value."""
    first = error.errors(include_url=False, include_input=False)[0]
    pointer = where + "".join(f"/{step}" for step in first["loc"])
    if first["type"] == "extra_forbidden":
        field = ascii(first["loc"][-1])[:100]
        step = "Remove it, or send it with the newer version that has it"
        return UnknownField(f"unknown field {field}", where=pointer[:512], next_step=step)
    kind = InvalidName if first["type"] == "string_pattern_mismatch" else BadInput
    return kind(
        first["msg"], where=pointer[:512], next_step="Compare the message with the shipped schema"
    )
