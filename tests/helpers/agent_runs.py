"""What the journal of a run with agents has."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Sample
from headrace.store.journal import Journal


def samples_of(run: Path) -> list[Sample]:
    """Of a run with `record.journal=all`."""
    journal = Journal(run / "journal")
    writers = sorted({segment.writer for segment in journal.segments()})
    groups = [decode_group(journal.read(each.place)) for writer in writers for each in journal.written(writer)]
    return [sample for group in groups for sample in group.samples]


def turns_of(sample: Sample) -> int:
    """How many stretches of it are trained."""
    mask = sample.loss_mask.astype(np.int8)
    return int((np.diff(mask, prepend=np.int8(0)) == 1).sum())
