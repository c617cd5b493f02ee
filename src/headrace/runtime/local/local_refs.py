"""Refs of one process in which several keep columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.runtime.refs import InlineRefs, Ref, RefLost, Refs
from headrace.runtime.wire.copying import Carrier

GENERATION = 1 << 40
"""Refs that a keeper can put before it is made anew."""


class Keepers:
    """Whose refs are here, by name."""

    def __init__(self) -> None:
        self._refs: dict[str, InlineRefs] = {}
        self._made: dict[str, int] = {}
        self.elsewhere: Refs | None = None
        """What is kept in other processes."""

    def add(self, keeper: str) -> InlineRefs:
        """A keeper made anew does not know the refs that it had."""
        made = self._made[keeper] = self._made.get(keeper, -1) + 1
        self._refs[keeper] = InlineRefs(keeper, made * GENERATION)
        return self._refs[keeper]

    def remove(self, keeper: str) -> None:
        """Its refs are lost."""
        self._refs.pop(keeper, None)

    def lose_all(self) -> None:
        """All refs that are here are lost; their keepers are there."""
        for refs in self._refs.values():
            refs.lose_all()

    def _of(self, ref: Ref) -> Refs:
        refs = self._refs.get(ref.keeper, self.elsewhere)
        if refs is None:
            raise RefLost(ref)
        return refs

    def here(self, ref: Ref) -> InlineRefs:
        """Those of its keeper, who is in this process. Raises RefLost."""
        if ref.keeper not in self._refs:
            raise RefLost(ref)
        return self._refs[ref.keeper]

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`."""
        return self._of(ref).get(ref, names)

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        if ref.keeper in self._refs or self.elsewhere is not None:
            self._of(ref).free(ref)

    def __contains__(self, keeper: object) -> bool:
        return keeper in self._refs


class KeptHere:
    """`Refs` of one keeper, who reads those of all."""

    def __init__(self, keeper: str, keepers: Keepers, carrier: Carrier) -> None:
        self._own = keepers.add(keeper)
        self._keepers = keepers
        self._carrier = carrier

    def __len__(self) -> int:
        """Refs of its own that were put and not freed."""
        return len(self._own)

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`."""
        return self._own.put(self._carrier.columns(columns))

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`."""
        return self._keepers.get(ref, names)

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        self._keepers.free(ref)
