"""How many groups are due by each deadline, and which deadline is full first: O(log d) a change and a question.

A binary tree over the deadlines 0 ... d, with nodes only where groups are due. N(d) counts the groups due at d or
earlier, B groups make a batch. A node holds how many groups are due within it, and its least *slack*: over its
deadlines d, d*B less the groups due within it at d or earlier. Joining two neighbours adds the counts, and what is due
on the left lowers the slack on the right.
"""

from __future__ import annotations

from typing import NamedTuple


class DueBy(NamedTuple):
    deadline: int
    groups: int
    """N(deadline)."""


class _Node(NamedTuple):
    groups: int
    slack: int


class DueCounts:
    """A deadline below 0 counts as 0."""

    def __init__(self, prompts_per_batch: int) -> None:
        self._prompts_per_batch = prompts_per_batch
        self._levels: list[dict[int, _Node]] = [{}]
        """Node n of level l spans the deadlines n*2^l ... (n+1)*2^l - 1. The last level has one node at most."""

    def add(self, deadline: int) -> None:
        """One group more is due."""
        self._change(max(deadline, 0), 1)

    def remove(self, deadline: int) -> None:
        """One group less is due; there was one."""
        self._change(max(deadline, 0), -1)

    def first_full(self, batch: int, places: int) -> DueBy | None:
        """The earliest deadline d >= `batch` with N(d) > (d - batch)*B + `places`; None if there is none.

        Only a d at which groups are due is looked at, since elsewhere N does not grow; what is due before `batch` is
        due at `batch`.
        """
        if batch not in self._levels[0]:
            before = self._before(batch)
            if before > max(places, 0):
                return DueBy(batch, before)
        return self._first(len(self._levels) - 1, 0, 0, batch, batch * self._prompts_per_batch - places)

    def _first(self, level: int, place: int, before: int, batch: int, slack: int) -> DueBy | None:
        """The earliest deadline from `batch` on in this node whose slack is below `slack`; `before`: groups that are
        due before the node."""
        node = self._levels[level].get(place)
        if node is None or (place + 1) << level <= batch or node.slack - before >= slack:
            return None
        if not level:
            return DueBy(place, before + node.groups)
        left = self._levels[level - 1].get(2 * place)
        found = self._first(level - 1, 2 * place, before, batch, slack)
        if found is not None:
            return found
        return self._first(level - 1, 2 * place + 1, before + (left.groups if left else 0), batch, slack)

    def _before(self, deadline: int) -> int:
        """Groups that are due before it."""
        groups = 0
        for level in self._levels:
            if deadline & 1 and (node := level.get(deadline - 1)) is not None:
                groups += node.groups
            deadline >>= 1
        if deadline and (top := self._levels[-1].get(0)) is not None:
            return top.groups
        return groups

    def _change(self, deadline: int, by: int) -> None:
        while deadline >> (len(self._levels) - 1):
            self._levels.append(dict(self._levels[-1]))
        there = self._levels[0].get(deadline)
        groups = by if there is None else there.groups + by
        node = _Node(groups, deadline * self._prompts_per_batch - groups) if groups else None
        place = deadline
        for level in self._levels:
            if node is None:
                del level[place]
            else:
                level[place] = node
            beside = level.get(place ^ 1)
            node = _joined(beside, node) if place & 1 else _joined(node, beside)
            place >>= 1


def _joined(left: _Node | None, right: _Node | None) -> _Node | None:
    if left is None or right is None:
        return left or right
    return _Node(left.groups + right.groups, min(left.slack, right.slack - left.groups))
