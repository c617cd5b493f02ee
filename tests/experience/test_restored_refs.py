"""What is lost with its keeper is read from the journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.experience.columns import put_samples
from headrace.experience.records.codec import encode_group
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.runtime.local.local_refs import Keepers, KeptHere
from headrace.runtime.refs import Ref, RefLost, near
from headrace.runtime.wire.copying import Carrier
from headrace.runtime.wire.wire_types import WireTypes
from headrace.store import JournalWriter
from headrace.store.journal import Journal


def made() -> Group:
    def sample(episode: int) -> Sample:
        length = 3 + episode
        return Sample(
            group=GroupKey(0, 1, 0),
            episode=episode,
            index=0,
            tokens=np.arange(length, dtype=np.int32),
            loss_mask=np.ones(length, np.bool_),
            logprobs=np.zeros(length, np.float32),
            versions=np.zeros(length, np.int32),
            branches=np.zeros(length, np.int32),
            status=SampleStatus.COMPLETED,
            reward=1.0,
        )

    return Group(GroupKey(0, 1, 0), "p", 0, 2, (sample(0), sample(1)), 1)


def test_lost_columns_come_from_the_journal_once_and_are_freed(tmp_path: Path) -> None:
    group = made()
    writer = JournalWriter(tmp_path, 3)
    place = writer.append(group.key, encode_group(group), issue=group.issue)
    writer.close()
    keepers = Keepers()
    carrier = Carrier(WireTypes(), copying=False)
    here, worker = KeptHere("", keepers, carrier), KeptHere("rollout/0", keepers, carrier)
    reads = []
    refs = RestoredRefs(here, lambda at: reads.append(at) or Journal(tmp_path).read(at))
    kept = put_samples(worker, group)
    refs.note(kept, place)
    assert refs.get(kept[0], ("tokens",))["tokens"] is group.samples[0].tokens, "nothing is copied while it is there"
    keepers.remove("rollout/0")
    for ref, sample in zip(kept, group.samples, strict=True):
        assert np.array_equal(refs.get(ref)["tokens"], sample.tokens)
        assert refs.current(ref).keeper == ""
    assert len(reads) == 1
    for ref in kept:
        refs.free(ref)
    assert len(here) == 0
    with pytest.raises(RefLost):
        refs.get(kept[0])


class Elsewhere:
    """Of which each `get` is a wait, and `fetched` is one for all."""

    def __init__(self) -> None:
        self.columns: dict[Ref, Mapping[str, Any]] = {}
        self.numbers = count()
        self.waits = 0

    def put(self, columns: Mapping[str, Any]) -> Ref:
        ref = Ref("", next(self.numbers), tuple(columns))
        self.columns[ref] = columns
        return ref

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        self.waits += 1
        if ref not in self.columns:
            raise RefLost(ref)
        return self.columns[ref]

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        self.waits += 1
        if lost := [ref for ref in refs if ref not in self.columns]:
            raise RefLost(lost[0])
        return {ref: self.columns[ref] for ref in refs}

    def free(self, ref: Ref) -> None:
        self.columns.pop(ref, None)


def test_columns_elsewhere_are_asked_for_together_also_those_that_came_from_the_journal(tmp_path: Path) -> None:
    group = made()
    writer = JournalWriter(tmp_path, 3)
    place = writer.append(group.key, encode_group(group), issue=group.issue)
    writer.close()
    elsewhere = Elsewhere()
    refs = RestoredRefs(elsewhere, Journal(tmp_path).read)
    kept = put_samples(elsewhere, group)
    refs.note(kept, place)

    def all_tokens() -> list[Any]:
        at_hand = near(refs, kept)
        return [at_hand.get(ref)["tokens"] for ref in kept]

    expected = [sample.tokens for sample in group.samples]
    assert all(map(np.array_equal, all_tokens(), expected))
    assert elsewhere.waits == 1
    elsewhere.free(kept[0])
    assert all(map(np.array_equal, all_tokens(), expected))
    elsewhere.waits = 0
    assert all(map(np.array_equal, all_tokens(), expected))
    assert elsewhere.waits == 1
