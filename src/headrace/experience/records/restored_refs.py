"""Refs of journaled samples: what is lost with its keeper is read from the journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.experience.columns import put_samples
from headrace.experience.records.codec import decode_group
from headrace.runtime.refs import FarRefs, Ref, RefLost, Refs
from headrace.store import JournalOffset


@dataclass(slots=True)
class _Noted:
    group: tuple[Ref, ...]
    """Of all samples of the record, in its order."""
    place: JournalOffset


class RestoredRefs:
    """`Refs`. A lost ref of a live row is no fault: the record of its group is read again, and its columns are kept
    here from then on. Methods may be called from any thread."""

    def __init__(self, refs: Refs, read: Callable[[JournalOffset], bytes]) -> None:
        """`read`: the payload of a record."""
        self._refs = refs
        self._read = read
        self._noted: dict[Ref, _Noted] = {}
        self._instead: dict[Ref, Ref] = {}

    def note(self, refs: Sequence[Ref], place: JournalOffset) -> None:
        """These are the columns of the samples of the record at `place`."""
        noted = _Noted(tuple(refs), place)
        self._noted.update(dict.fromkeys(refs, noted))

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`."""
        return self._refs.put(columns)

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`."""
        try:
            return self._refs.get(self._instead.get(ref, ref), names)
        except RefLost:
            return self._refs.get(self.restored(ref), names)

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        """See `FarRefs.fetched`. Where one is lost none is at hand, and `get` reads that one from the journal."""
        if not isinstance(self._refs, FarRefs):
            return {}
        known = {ref: self.current(ref) for ref in refs}
        try:
            came = self._refs.fetched([*dict.fromkeys(known.values())])
        except RefLost:
            return {}
        return {ref: came[now] for ref, now in known.items() if now in came}

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        self._noted.pop(ref, None)
        instead = self._instead.pop(ref, None)
        self._refs.free(ref if instead is None else instead)

    def current(self, ref: Ref) -> Ref:
        """By which others ask for its columns now."""
        return self._instead.get(ref, ref)

    def lose_all(self) -> None:
        """Whoever knew where columns are has ended: also what was read from the journal is there no more."""
        for ref in [*self._instead]:
            if (instead := self._instead.pop(ref, None)) is not None:
                self._refs.free(instead)  # perhaps it was put since

    def restored(self, ref: Ref) -> Ref:
        """The ref by which a lost one's columns are known now. Blocking. Raises RefLost for one that is not journaled;
        RunDamaged."""
        if (known := self._instead.get(ref)) is not None:
            return known
        noted = self._noted.get(ref)
        if noted is None:
            raise RefLost(ref)
        fresh = put_samples(self._refs, decode_group(self._read(noted.place)))
        for old, new in zip(noted.group, fresh, strict=True):
            # Another thread may do the same, and the event loop free the old one: each step is one of the dict's own.
            kept = self._instead.setdefault(old, new)
            if kept is not new or (old not in self._noted and self._instead.pop(old, None) is not None):
                self._refs.free(new)
        found = self._instead.get(ref)
        if found is None:
            raise RefLost(ref)
        return found
