"""The base of every config section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A frozen mapping that refuses unknown keys. The string under a field is its documentation (`field_docs.py`)."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        populate_by_name=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """true and false are none, though Python's are: `prompts_per_batch: true` is a slip. No number needs more than
        64 bits, and arrays hold none that does."""
        if info.field_name is None:
            return value
        parts = set(_parts(cls.model_fields[info.field_name].annotation))
        if parts & {int, float} and bool not in parts:
            for each in _values(value):
                if isinstance(each, bool):
                    raise PydanticCustomError("no_number", "a number is wanted, not true or false")
                if isinstance(each, int) and abs(each) >= 2**63:
                    raise PydanticCustomError("too_large", "a smaller number is wanted")
        return value


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _parts(annotation: Any) -> Iterator[Any]:
    """`annotation` and the types that it is made of, sections and what is in them aside."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
