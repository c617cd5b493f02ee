"""Keys in order of their priorities, which may change."""

from __future__ import annotations

import heapq
from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K")

_SLACK = 16


class Entry(NamedTuple, Generic[K]):
    priority: Any
    key: K


class KeyedHeap(Generic[K]):
    """O(log n) amortised. Priorities are of one type that is ordered; among equal ones the least key comes first.

    An entry of the heap that is no more a key's priority stays until it is the first, or most entries are such.
    """

    def __init__(self) -> None:
        self._priorities: dict[K, Any] = {}
        self._heap: list[Entry[K]] = []

    def __len__(self) -> int:
        return len(self._priorities)

    def __contains__(self, key: K) -> bool:
        return key in self._priorities

    def __getitem__(self, key: K) -> Any:
        """Its priority."""
        return self._priorities[key]

    def set(self, key: K, priority: Any) -> None:
        """Put a key in, or change its priority."""
        self._priorities[key] = priority
        heapq.heappush(self._heap, Entry(priority, key))
        if len(self._heap) > 2 * len(self._priorities) + _SLACK:
            self._heap = [Entry(priority, key) for key, priority in self._priorities.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Take a key out, if it is there."""
        self._priorities.pop(key, None)

    def first(self) -> Entry[K] | None:
        """The key of least priority."""
        while self._heap:
            first = self._heap[0]
            if first.key in self._priorities and self._priorities[first.key] == first.priority:
                return first
            heapq.heappop(self._heap)
        return None
