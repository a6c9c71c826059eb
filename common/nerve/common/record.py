"""Records that the hot path builds by the dozen for every Turn."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """A dataclass that type checkers keep frozen, and that is not checked again at run time.

    A frozen one sets each field by a call: that costs three times what the rest of its making does.
    """
    return dataclass(slots=True, kw_only=True)(cls)
