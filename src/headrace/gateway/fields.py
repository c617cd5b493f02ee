"""A JSON object read field by field: each read names a type and a range, and what was never read is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.gateway.errors import ApiError


class Fields:
    """`null` counts as absent, as OpenAI's clients send it. Every fault is an ApiError that names the field."""

    def __init__(self, body: Any, where: str = "the body") -> None:
        if not isinstance(body, dict):
            raise ApiError(f"{where} must be a JSON object, not {_shown(body)}")
        self._body: dict[str, Any] = body
        self._read: dict[str, None] = {}
        """Names in the order of reading."""

    def get(self, name: str) -> Any:
        """The raw value, or None."""
        self._read[name] = None
        return self._body.get(name)

    def among(self, names: Iterable[str]) -> dict[str, Any]:
        """The raw values of those that are given."""
        return {name: value for name in names if (value := self.get(name)) is not None}

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "a whole number")
        if not low <= value <= high:
            raise _wrong(name, value, f"between {low} and {high}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        return None if self.get(name) is None else self.integer(name, 0, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(name, value, "a number")
        if not low <= value <= high:
            raise _wrong(name, value, f"between {low:g} and {high:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def integers(self, name: str, high: int) -> tuple[int, ...]:
        """A list of whole numbers from 0 to `high`; empty if absent."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise _wrong(name, value, "a list of whole numbers")
        for number in value:
            if isinstance(number, bool) or not isinstance(number, int):
                raise _wrong(name, number, "a list of whole numbers")
            if not 0 <= number <= high:
                raise _wrong(name, number, f"token ids between 0 and {high}")
        return tuple(value)

    def refuse_rest(self, inert: Mapping[str, Any], ignored: Iterable[str]) -> None:
        """Raise for a field that nothing read, unless it is `ignored`, or has the value that changes nothing."""
        for name, value in self._body.items():
            if name in self._read or name in ignored or value is None:
                continue
            if name not in inert:
                raise ApiError(f"unknown field {name!r}; known ones are {', '.join(self._read)}", param=name)
            if value != inert[name]:
                raise ApiError(f"{name} is {_shown(value)}, which is not supported: leave it out", param=name)


def _wrong(name: str, value: Any, wanted: str) -> ApiError:
    return ApiError(f"{name} is {_shown(value)}; it must be {wanted}", param=name)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float) or value is None else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:60] + "..."
