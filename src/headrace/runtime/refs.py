"""Refs: what a row's arrays, text and metadata are known by, where nobody looks into them.

A sample's columns are kept by whoever made them, and read where something is computed from them. In between goes a
`Ref`: plain data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import count
from typing import Any, Protocol, runtime_checkable

from headrace.errors import HeadraceError


class RefLost(HeadraceError, RuntimeError):
    """What a ref stood for is gone: it was freed, or whoever kept it has ended."""

    def __init__(self, ref: Ref) -> None:
        keeper = ref.keeper or "the controller"
        super().__init__(f"{keeper} does not keep the columns {', '.join(ref.columns)} (number {ref.number}) any more")
        self.ref = ref


@dataclass(frozen=True, slots=True)
class Ref:
    """To columns that were put together."""

    keeper: str
    """Whose they are: the name of a worker, or empty for the controller."""
    number: int
    """Which of the keeper's; never given twice."""
    columns: tuple[str, ...]
    """Their names."""


class Refs(Protocol):
    """Where columns are kept. A column is an array, text, a number, or JSON-like values."""

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """Keep them until `free`. They are not to be changed any more."""

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """Columns by name; all of them unless `names` are given. Not to be changed. Raises RefLost; KeyError for a name
        that the ref does not have. May block on other processes: not for the event loop's thread, unless everything is
        kept in this process."""

    def free(self, ref: Ref) -> None:
        """Nobody will ask for it any more. Of one that is gone, nothing happens."""


@runtime_checkable
class FarRefs(Protocol):
    """Refs of which some are kept elsewhere, and asked for one by one with a wait for each."""

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        """The columns of those that are elsewhere, asked for together. Raises RefLost. May block, as `Refs.get`."""


def near(refs: Refs, wanted: Collection[Ref]) -> Refs:
    """`refs`, with those that are `wanted` at hand. Raises RefLost. May block, as `Refs.get`."""
    return _Near(refs, refs.fetched(wanted)) if isinstance(refs, FarRefs) else refs


def refs_in(value: Any) -> Iterator[Ref]:
    """In plain data."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from refs_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from refs_in(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from refs_in(getattr(value, field.name))


class _Near:
    """See `near`."""

    def __init__(self, refs: Refs, at_hand: Mapping[Ref, Mapping[str, Any]]) -> None:
        self._refs = refs
        self._at_hand = at_hand

    def put(self, columns: Mapping[str, Any]) -> Ref:
        return self._refs.put(columns)

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        found = self._at_hand.get(ref)
        if found is None:
            return self._refs.get(ref, names)
        return found if names is None else {name: found[name] for name in names}

    def free(self, ref: Ref) -> None:
        self._refs.free(ref)


class InlineRefs:
    """The objects themselves, in this process: nothing is copied."""

    def __init__(self, keeper: str = "", first: int = 0) -> None:
        """`first` number: beyond those that an earlier keeper of this name gave."""
        self._keeper = keeper
        self._numbers = count(first)
        self._kept: dict[int, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        """Refs that were put and not freed."""
        return len(self._kept)

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`."""
        ref = Ref(self._keeper, next(self._numbers), tuple(columns))
        self._kept[ref.number] = dict(columns)
        return ref

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`."""
        kept = self._kept.get(ref.number) if ref.keeper == self._keeper else None
        if kept is None:
            raise RefLost(ref)
        return kept if names is None else {name: kept[name] for name in names}

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        if ref.keeper == self._keeper:
            self._kept.pop(ref.number, None)

    def lose_all(self) -> None:
        """All that was put is there no more."""
        self._kept.clear()
