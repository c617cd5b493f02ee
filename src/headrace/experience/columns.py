"""A sample's columns: what of it stays with whoever made it, behind a ref, and how a row's are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.experience.header import GroupHeader, SampleHeader
from headrace.experience.sample import Group, Sample
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes

COLUMN_TYPES = WireTypes({"kept_sets": KeptSets})
"""What columns consist of, beside arrays and JSON-like values."""
EXPERTS = "experts"
"""The column that a policy is told which experts to route to by."""
SAMPLE_COLUMNS = (
    *("tokens", "loss_mask", "logprobs", "versions", "branches", "kept_sets", "temperatures", EXPERTS),
    "metadata",
)


@dataclass(frozen=True, slots=True)
class OnChosenTokens:
    """A column of one number: at each token that the policy chose, and 0 at the others."""

    value: float


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group whose episodes have ended, as the controller has it."""

    header: GroupHeader
    refs: tuple[Ref, ...]
    """To the columns of each of its samples."""


def put_samples(refs: Refs, group: Group) -> tuple[Ref, ...]:
    """Keep the columns of each sample, also of those that failed."""
    return tuple(refs.put(_columns(sample)) for sample in group.samples)


def _columns(sample: Sample) -> dict[str, Any]:
    values = (
        sample.tokens,
        sample.loss_mask,
        sample.logprobs,
        sample.versions,
        sample.branches,
        sample.kept,
        sample.temperatures,
        sample.experts,
        sample.metadata,
    )
    return dict(zip(SAMPLE_COLUMNS, values, strict=True))


def sample_of(header: SampleHeader, columns: Mapping[str, Any]) -> Sample:
    """From its header, and its columns."""
    return Sample(
        group=header.key,
        episode=header.episode,
        index=header.index,
        tokens=columns["tokens"],
        loss_mask=columns["loss_mask"],
        logprobs=columns["logprobs"],
        versions=columns["versions"],
        branches=columns["branches"],
        status=header.status,
        reward=header.reward,
        failure=header.failure,
        metadata=columns["metadata"],
        kept=columns["kept_sets"],
        temperatures=columns["temperatures"],
        experts=columns[EXPERTS],
        terms=header.terms,
    )


def group_of(refs: Refs, header: GroupHeader, of_samples: Sequence[Ref]) -> Group:
    """The whole group again. Raises RefLost."""
    samples = (sample_of(one, refs.get(ref)) for one, ref in zip(header.samples, of_samples, strict=True))
    return Group(
        header.key, header.prompt_id, header.start_version, header.deadline, tuple(samples), issue=header.issue
    )


def rewarded(group: Group, header: GroupHeader) -> Group:
    """The group with the rewards that its header has: a model may have had a say in them."""
    samples = (replace(one, reward=judged.reward) for one, judged in zip(group.samples, header.samples, strict=True))
    return replace(group, samples=tuple(samples))


class Columned(Protocol):
    """A row, or what somebody was told of one."""

    @property
    def header(self) -> SampleHeader: ...

    @property
    def columns(self) -> Mapping[str, Any]: ...


def refs_of(rows: Iterable[Columned]) -> set[Ref]:
    """All that stand for their columns."""
    return {value for row in rows for value in row.columns.values() if isinstance(value, Ref)}


def read(refs: Refs, row: Columned, names: Collection[str]) -> dict[str, Any]:
    """Columns of a row by name: arrays [T], numbers, or JSON-like values. Not to be changed. Raises RefLost, KeyError.

    For where is computed: not in the event loop."""
    found: dict[str, Any] = {}
    by_ref: dict[Ref, list[str]] = {}
    for name in names:
        value = row.columns[name]
        if isinstance(value, Ref):
            by_ref.setdefault(value, []).append(name)
        else:
            found[name] = value
    for ref, wanted in by_ref.items():
        found.update(refs.get(ref, wanted))
    for name, value in found.items():
        if isinstance(value, OnChosenTokens):
            found[name] = on_chosen(value.value, row.header)
    return found


def on_chosen(value: float, header: SampleHeader) -> NDArray[np.float32]:
    """[T]: `value` at the tokens that the policy chose."""
    column = np.zeros(header.length, np.float32)
    for span in header.spans:
        column[span.start : span.end] = value
    return column
