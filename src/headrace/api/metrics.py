"""What was recorded of a run, in order, as a sequence and as a frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

from headrace.api.frame import frame_of


class Entry(Protocol):
    def to_json(self) -> dict[str, Any]: ...


EntryT = TypeVar("EntryT", bound=Entry, covariant=True)


class Metrics(Sequence[EntryT]):
    """Of each batch, or of each step of an offline trainer: `docs/metrics.md` has a row for every number."""

    def __init__(self, entries: Sequence[EntryT], *, index: str, called: str) -> None:
        """`index`: the number by which an entry goes. `called`: what they are of, as batches."""
        self._entries = tuple(entries)
        self._index = index
        self._called = called

    @overload
    def __getitem__(self, place: int) -> EntryT: ...
    @overload
    def __getitem__(self, place: slice) -> Metrics[EntryT]: ...
    def __getitem__(self, place: int | slice) -> EntryT | Metrics[EntryT]:
        if isinstance(place, int):
            return self._entries[place]
        return Metrics(self._entries[place], index=self._index, called=self._called)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[EntryT]:
        return iter(self._entries)

    def __repr__(self) -> str:
        return f"<metrics of {len(self._entries)} {self._called}>"

    def frame(self) -> Any:
        """A pandas frame with a row for each entry, by its number. Raises ConfigError without pandas."""
        return frame_of([entry.to_json() for entry in self._entries], index=self._index)
