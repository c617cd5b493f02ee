"""The first of many that is small enough: positions in a line, each with a value.

A tree of which a node has up to 32 children, and for each the least value below it. A change goes up only as far as
least values change, so that most end where they began.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_BITS = 5


class Found(NamedTuple):
    position: int
    value: int


class FirstFit:
    """Positions are 0 or more. O(log p) a change and a question, where p is the largest position."""

    def __init__(self) -> None:
        self._levels: list[dict[int, dict[int, int]]] = [{}]
        """Nodes by number, each with the least value of each child. Child c is of node c // 32; the children of the
        first level are the positions."""

    def __bool__(self) -> bool:
        return bool(self._levels[0])

    def add(self, position: int, value: int) -> None:
        """A position that is not there."""
        while position >> (_BITS * len(self._levels)):
            self._grow()
        child = position
        for nodes in self._levels:
            place = child >> _BITS
            node = nodes.get(place)
            if node is None:
                nodes[place] = {child: value}
            else:
                least = node.get(child)
                if least is not None and least <= value:
                    return
                node[child] = value
            child = place

    def remove(self, position: int) -> int:
        """A position that is there; returns its value."""
        value = self._levels[0][position >> _BITS][position]
        child, gone = position, value
        least: int | None = None
        """Of the child, now; None if it is empty."""
        for nodes in self._levels:
            place = child >> _BITS
            node = nodes[place]
            if least is None:
                del node[child]
            else:
                node[child] = least
            if node:
                least = min(node.values())
                if least <= gone:
                    break
            else:
                del nodes[place]
            child = place
        return value

    def first(self, start: int = 0, limit: float = math.inf) -> Found | None:
        """The first position from `start` on whose value is at most `limit`."""
        near = self._levels[0].get(start >> _BITS)
        if near is not None and (value := near.get(start)) is not None and value <= limit:
            return Found(start, value)  # as mostly, where nothing is passed over
        child = start
        for level, nodes in enumerate(self._levels):
            place = child >> _BITS
            node = nodes.get(place)
            if node is not None:
                fits = [there for there, least in node.items() if least <= limit and there >= child]
                if fits:
                    return self._down(level, min(fits), limit)
            child = place + 1
        return None

    def _down(self, level: int, child: int, limit: float) -> Found:
        """The first below a child of a level that has one."""
        for nodes in reversed(self._levels[:level]):
            child = min([there for there, least in nodes[child].items() if least <= limit])
        return Found(child, self._levels[0][child >> _BITS][child])

    def _grow(self) -> None:
        top = self._levels[-1].get(0)
        self._levels.append({} if top is None else {0: {0: min(top.values())}})
