"""Groups that have finished, and are not trained or dropped yet: what the table has of each, and where it is
journaled."""

from __future__ import annotations

from typing import NamedTuple

from headrace.experience.columns import SAMPLE_COLUMNS, FinishedGroup
from headrace.experience.header import SampleHeader
from headrace.experience.leases import NewRow
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import GroupKey
from headrace.experience.table import ExperienceTable
from headrace.runtime.refs import Ref
from headrace.store import JournalOffset

FILTER = "filter"
"""The consumer that has groups kept or dropped."""


class _Finished(NamedTuple):
    place: JournalOffset
    rows: int
    is_kept: bool = False
    """It was judged, and may be trained on."""


class FinishedGroups:
    """Their trainable samples are rows of the table."""

    def __init__(self, table: ExperienceTable, *, reward_column: str, column_bytes: int) -> None:
        """`reward_column`: what the table calls the reward that a sample came with. `column_bytes`: of a token, in the
        columns that stages will write."""
        self._table = table
        self._reward_column = reward_column
        self._column_bytes = column_bytes
        self._groups: dict[GroupKey, _Finished] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._groups

    def place(self, key: GroupKey) -> JournalOffset:
        """Where it is journaled."""
        return self._groups[key].place

    def rows(self, key: GroupKey) -> int:
        """How many it has in the table."""
        return self._groups[key].rows

    def put(self, group: FinishedGroup, place: JournalOffset, *, is_kept: bool = False) -> None:
        """Into its reserved place in the table, which has its refs from now on. `is_kept`: it was judged before, and is
        not judged again."""
        header, rows, refs = group.header, self._rows_of(group), self._table.refs
        if isinstance(refs, RestoredRefs):
            refs.note(group.refs, place)
        self._groups[header.key] = _Finished(place, len(rows), is_kept)
        # Metadata, text and single numbers are not counted.
        nbytes = header.nbytes + self._column_bytes * sum(one.length for one, _ in rows)
        self._table.put(header.key, rows, group=group, nbytes=nbytes, seen_by=(FILTER,) if is_kept else ())
        if is_kept:
            self._table.write_group(header.key, "keep", True)

    def keep(self, key: GroupKey) -> None:
        """It may be trained on."""
        self._groups[key] = self._groups[key]._replace(is_kept=True)
        self._table.write_group(key, "keep", True)

    def forget(self, key: GroupKey) -> None:
        """It is trained, or dropped."""
        self._groups.pop(key, None)

    def reopen(self) -> None:
        """All is to be computed of their rows again; those that are kept are not judged again."""
        for key, (_, _, is_kept) in self._groups.items():
            self._table.reopen(key, self._rows_of(self._table.group(key)), seen_by=(FILTER,) if is_kept else ())
            if is_kept:
                self._table.write_group(key, "keep", True)

    def _rows_of(self, group: FinishedGroup) -> list[NewRow]:
        samples = zip(group.header.samples, group.refs, strict=True)
        return [self._row(one, ref) for one, ref in samples if one.is_trainable]

    def _row(self, header: SampleHeader, ref: Ref) -> NewRow:
        return header, {
            **dict.fromkeys(SAMPLE_COLUMNS, ref),
            self._reward_column: header.reward,
            "group": header.key,
            "episode": header.episode,
            "sample": header.index,
            "truncated": header.is_truncated,
            "terms": header.terms,
        }
