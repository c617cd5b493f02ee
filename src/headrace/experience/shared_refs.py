"""Who frees refs: the table has those of a group, and whoever holds the group keeps them from being freed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.experience.sample import GroupKey
from headrace.runtime.refs import Ref, Refs


@dataclass(slots=True)
class _Group:
    refs: list[Ref] = field(default_factory=list)
    holders: int = 0
    has_left: bool = False


class SharedRefs:
    """A group's refs are freed once it has left the table and nobody holds it."""

    def __init__(self, refs: Refs) -> None:
        self._refs = refs
        self._groups: dict[GroupKey, _Group] = {}

    def enter(self, key: GroupKey, refs: Iterable[Ref]) -> None:
        """The group is in the table, with these."""
        self._groups[key] = _Group(list(refs))

    def keep(self, key: GroupKey, refs: Iterable[Ref]) -> None:
        """What was computed of the group is nobody's any more: only these are left of it."""
        group, left = self._groups[key], list(refs)
        for ref in group.refs:
            if ref not in left:
                self._refs.free(ref)
        group.refs = left

    def add(self, key: GroupKey, refs: Iterable[Ref]) -> None:
        """What was computed of the group. Of one that is gone, it is freed."""
        group = self._groups.get(key)
        if group is not None:
            group.refs.extend(refs)
            return
        for ref in refs:
            self._refs.free(ref)

    def hold(self, keys: Iterable[GroupKey]) -> None:
        """To be ended by `let_go`."""
        for key in keys:
            self._groups[key].holders += 1

    def let_go(self, keys: Iterable[GroupKey]) -> None:
        for key in keys:
            self._groups[key].holders -= 1
            self._free(key)

    def leave(self, key: GroupKey) -> None:
        """The group is in the table no more."""
        if key in self._groups:
            self._groups[key].has_left = True
            self._free(key)

    def _free(self, key: GroupKey) -> None:
        group = self._groups[key]
        if group.has_left and not group.holders:
            del self._groups[key]
            for ref in group.refs:
                self._refs.free(ref)
