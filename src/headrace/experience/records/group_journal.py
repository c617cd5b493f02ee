"""Where a worker leaves the groups that it finishes: on the disk, and behind refs."""

from __future__ import annotations

from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.header import GroupHeader, header_of
from headrace.experience.records.codec import encode_group
from headrace.experience.sample import Group, GroupKey
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Refs
from headrace.store import JournalOffset, JournalWriter, Receipt

ENCODE_LANE, SYNC_LANE = "journal.encode", "journal"
"""Two: while one group's bytes go to the disk, others are encoded, and the next sync covers them all."""


class GroupJournal:
    def __init__(self, writer: JournalWriter, runtime: Services, refs: Refs) -> None:
        self._writer = writer
        self._runtime = runtime
        self._refs = refs

    async def write(self, group: Group) -> tuple[FinishedGroup, Receipt]:
        """Off the event loop. What is returned survives a power cut. Raises DiskFull, StoreError; CodecError if a
        sample's metadata is not JSON-like."""
        place, header = await self._runtime.compute(ENCODE_LANE, self._append, group)
        await self._runtime.compute(SYNC_LANE, self._writer.sync)
        finished = FinishedGroup(header, put_samples(self._refs, group))
        return finished, self._writer.receipt(group.key, place, issue=group.issue)

    def let_go(self, key: GroupKey) -> None:
        """What was not written is nowhere."""

    def _append(self, group: Group) -> tuple[JournalOffset, GroupHeader]:
        return self._writer.append(group.key, encode_group(group), issue=group.issue), header_of(group)
