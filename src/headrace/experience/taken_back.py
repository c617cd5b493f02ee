"""The groups of batches that are taken back, as the journal has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.header import header_of
from headrace.experience.records.codec import CodecError, decode_group
from headrace.experience.sample import GroupKey
from headrace.runtime.refs import Refs
from headrace.store import AttemptRow, JournalOffset, StoreError


def read_back(
    rows: Iterable[AttemptRow], read: Callable[[JournalOffset], bytes], refs: Refs
) -> tuple[dict[GroupKey, FinishedGroup], dict[GroupKey, str]]:
    """Each group behind refs, and of those that cannot be read why. `read`: the payload of a record. Blocking."""
    found: dict[GroupKey, FinishedGroup] = {}
    damaged: dict[GroupKey, str] = {}
    for row in rows:
        if row.offset is None:
            raise ValueError(f"group {row.key} is trained but has no place in the journal")
        try:
            group = decode_group(read(row.offset))
        except (StoreError, CodecError) as error:
            damaged[GroupKey(*row.key)] = str(error)
        else:
            found[group.key] = FinishedGroup(header_of(group), put_samples(refs, group))
    return found, damaged
