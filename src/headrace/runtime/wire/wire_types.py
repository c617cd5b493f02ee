"""Which types of ours may cross between processes, each by a name that both sides have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headrace.config.base import Section


class WireError(ValueError):
    """A value is no plain data, or bytes are none of this codec. The message names the type and the place."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of one type are taken apart and made again."""

    name: str
    kind: type
    fields: tuple[str, ...]
    """Of its parts, in order."""
    parts: Callable[[Any], Sequence[Any]]
    make: Callable[[list[Any]], Any]
    """Raises what the type raises of parts that it refuses."""


@dataclass(frozen=True, slots=True)
class WireTypes:
    """A registry: the wire has names alone, so that nothing is imported by what stands in a message.

    Frozen dataclasses, NamedTuples, StrEnums, and sections of a config (as their validated dump).
    """

    kinds: Mapping[str, type] = field(default_factory=dict)
    _by_name: dict[str, _Form] = field(init=False, repr=False, compare=False, default_factory=dict)
    _by_kind: dict[type, _Form] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raises TypeError for a kind that is no plain data, or has two names."""
        for name, kind in self.kinds.items():
            form = _form(name, kind)
            if kind in self._by_kind:
                raise TypeError(
                    f"{kind.__qualname__} is both {self._by_kind[kind].name!r} and {name!r}; give it one name"
                )
            self._by_name[name] = self._by_kind[kind] = form

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def with_types(self, other: WireTypes) -> WireTypes:
        """Those of both. Raises TypeError if a name means two things."""
        for name in self.kinds.keys() & other.kinds.keys():
            if self.kinds[name] is not other.kinds[name]:
                raise TypeError(f"{name!r} is {self.kinds[name].__qualname__} and {other.kinds[name].__qualname__}")
        return WireTypes({**self.kinds, **other.kinds})

    def of(self, kind: type) -> _Form | None:
        """How values of exactly this type travel."""
        return self._by_kind.get(kind)

    def named(self, name: object, where: Callable[[], str]) -> _Form:
        """Raises WireError for a name that is not here; `where` tells in what."""
        form = self._by_name.get(name) if isinstance(name, str) else None
        if form is None:
            raise WireError(
                f"{where()} is of the type {str(name)[:60]!r}, which is not registered; registered: "
                f"{', '.join(sorted(self._by_name)) or 'none'}"
            )
        return form


def _form(name: str, kind: type) -> _Form:
    if not name:
        raise TypeError(f"{kind.__qualname__} needs a name on the wire")
    if issubclass(kind, StrEnum):
        return _Form(name, kind, ("value",), lambda value: [str(value.value)], lambda parts: kind(*parts))
    if hasattr(kind, "model_validate"):  # worker processes that are told no section do without pydantic
        section = cast("type[Section]", kind)
        return _Form(name, kind, ("dump",), _dump, lambda parts: section.model_validate(*parts))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Form(name, kind, kind._fields, list, lambda parts: kind(*parts))
    if dataclasses.is_dataclass(kind):
        return _dataclass(name, kind)
    raise TypeError(
        f"{kind.__qualname__} cannot be registered as {name!r}: it is no frozen dataclass, NamedTuple, StrEnum or "
        "config section"
    )


def _dataclass(name: str, kind: type) -> _Form:
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{kind.__qualname__} cannot be registered as {name!r}: it is not frozen")
    fields = tuple(each.name for each in dataclasses.fields(kind) if each.init)
    if len(fields) < len(dataclasses.fields(kind)):
        raise TypeError(f"{kind.__qualname__} cannot be registered as {name!r}: it has fields that nobody can give it")
    parts = attrgetter(*fields) if len(fields) > 1 else _gets(fields)  # of one attrgetter gives no sequence
    if any(each.kw_only for each in dataclasses.fields(kind)):
        return _Form(name, kind, fields, parts, lambda parts: kind(**dict(zip(fields, parts, strict=True))))
    return _Form(name, kind, fields, parts, lambda parts: kind(*parts))


def _gets(fields: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    return lambda value: [getattr(value, field) for field in fields]


def _dump(section: Section) -> list[Any]:
    return [section.model_dump(mode="json", by_alias=True)]
