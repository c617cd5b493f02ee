"""Headers: what the controller knows of finished samples. Numbers and short text; no token is among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus


class Span(NamedTuple):
    """Tokens, one after another, that one version sampled."""

    branch: int
    number: int
    start: int
    """Place of the first in the sample."""
    end: int
    """Place behind the last."""

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SampleHeader:
    """Of one sample. Its spans are all tokens that the policy chose: the loss mask, and who sampled what."""

    key: GroupKey
    prompt_id: str
    episode: int
    index: int
    length: int
    """Tokens, prompt included."""
    status: SampleStatus
    spans: tuple[Span, ...] = ()
    """In order of their tokens. None is empty, and no two that touch are of one version."""
    issue: int = 0
    reward: float | None = None
    failure: str | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    nbytes: int = 0
    """Of its arrays."""

    @property
    def is_trainable(self) -> bool:
        return self.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)

    @property
    def is_truncated(self) -> bool:
        return self.status is SampleStatus.TRUNCATED

    @property
    def response_tokens(self) -> int:
        """How many tokens the policy chose."""
        return sum(span.tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """Of the finished episodes of one attempt at one prompt."""

    key: GroupKey
    prompt_id: str
    start_version: int
    """Number of the version that was loaded when the group was admitted."""
    deadline: int
    """The last batch that may train every token of this group."""
    samples: tuple[SampleHeader, ...]
    """Also those that failed."""
    issue: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of all samples."""
        return sum(sample.nbytes for sample in self.samples)

    @property
    def trainable(self) -> tuple[SampleHeader, ...]:
        return tuple(sample for sample in self.samples if sample.is_trainable)

    @property
    def trainable_episodes(self) -> int:
        """How many episodes have a trainable sample: one whose history was rewritten has several."""
        return len({sample.episode for sample in self.trainable})

    def rewarded(self, rewards: Sequence[float | None]) -> GroupHeader:
        """The same with these rewards of its trainable samples."""
        given = iter(rewards)
        samples = (replace(one, reward=next(given)) if one.is_trainable else one for one in self.samples)
        return replace(self, samples=tuple(samples))

    def last_of(self, episode: int) -> int:
        """The place in `samples` of the last trainable sample of an episode: the one that its reward is about. Raises
        ValueError."""
        for place in reversed(range(len(self.samples))):
            if self.samples[place].episode == episode and self.samples[place].is_trainable:
                return place
        raise ValueError(f"group {self.key} has no trainable sample of episode {episode}")


def header_of(group: Group) -> GroupHeader:
    """O(tokens)."""
    return GroupHeader(
        group.key,
        group.prompt_id,
        group.start_version,
        group.deadline,
        tuple(_of_sample(sample, group) for sample in group.samples),
        group.issue,
    )


def _of_sample(sample: Sample, group: Group) -> SampleHeader:
    return SampleHeader(
        key=sample.group,
        prompt_id=group.prompt_id,
        episode=sample.episode,
        index=sample.index,
        length=len(sample),
        status=sample.status,
        spans=tuple(spans_of(sample)),
        issue=group.issue,
        reward=sample.reward,
        failure=sample.failure,
        terms=dict(sample.terms),
        nbytes=sample.nbytes,
    )


def longest_run(spans: Iterable[Span]) -> int:
    """The most tokens in a row that the policy chose, whichever versions sampled them: those of its longest turn."""
    longest, start, end = 0, 0, 0
    for span in spans:
        if span.start != end:
            start = span.start
        end = span.end
        longest = max(longest, end - start)
    return longest


def mask_of(spans: Iterable[Span], length: int) -> NDArray[np.bool_]:
    """[length]: True at their tokens."""
    mask = np.zeros(length, np.bool_)
    for span in spans:
        mask[span.start : span.end] = True
    return mask


def spans_of(sample: Sample) -> Iterator[Span]:
    """Of the tokens that the policy chose."""
    return spans_in(sample.loss_mask, sample.branches, sample.versions)


def spans_in(loss_mask: NDArray[np.bool_], branches: NDArray[np.int32], versions: NDArray[np.int32]) -> Iterator[Span]:
    """The same from arrays [T]."""
    chosen = np.flatnonzero(loss_mask)
    if not len(chosen):
        return
    of_branch, numbers = branches[chosen], versions[chosen]
    begins = (np.diff(chosen) > 1) | (np.diff(of_branch) != 0) | (np.diff(numbers) != 0)
    starts = np.concatenate([[0], np.flatnonzero(begins) + 1])
    ends = np.concatenate([starts[1:], [len(chosen)]]) - 1
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        yield Span(int(of_branch[first]), int(numbers[first]), int(chosen[first]), int(chosen[last]) + 1)
