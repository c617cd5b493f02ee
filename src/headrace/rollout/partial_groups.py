"""Groups that a rollout function has begun, to bytes and back: what each sample has, and how it was put together."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.algorithms.kept_sets import joined
from headrace.experience.records.codec import CodecError, decode_group, encode_group, typed
from headrace.experience.sample import Group, Sample, SampleStatus
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.held_group import HeldGroup
from headrace.rollout.rollout_sample import Part, RolloutSample

_STATUSES = ("", *map(str, SampleStatus))


def encode_partial(held: HeldGroup) -> bytes:
    """Raises CodecError if a sample's metadata is not JSON-like."""
    samples = tuple(_row(held, sample) for sample in held.samples)
    return encode_group(Group(held.key, held.prompt.prompt_id, held.start_version.number, held.deadline, samples))


def restore_partial(held: HeldGroup, data: bytes) -> None:
    """Have the samples of the group, which are new, go on from what was kept. Raises CodecError, and leaves them as
    they are, where that is not of this group."""
    kept = decode_group(data)
    if kept.key != held.key or len(kept.samples) != len(held.samples):
        raise CodecError(f"what was kept is of {kept.key} and has {len(kept.samples)} samples, not of {held.key}")
    read = [_parts(one) for one in kept.samples]
    for sample, parts in zip(held.samples, read, strict=True):
        if not parts or not np.array_equal(parts[0].tokens, sample.parts[0].tokens):
            raise CodecError(f"what was kept of {held.key} follows another prompt")
    for sample, parts, one in zip(held.samples, read, kept.samples, strict=True):
        sample.restore(parts[1:], one.experts)
        status = one.metadata["status"]
        sample.status = SampleStatus(status) if status else None
        sample.failure, sample.reward, sample.metadata = one.failure, one.reward, one.metadata["own"]
        sample.outcome = RewardOutcome(one.reward, terms=one.terms) if one.terms else None


def _row(held: HeldGroup, sample: RolloutSample) -> Sample:
    parts = sample.parts
    layout = [[part.chosen, part.trained, len(part.tokens)] for part in parts]
    counts = [np.full(len(part.tokens), part.chosen and part.trained) for part in parts]
    outcome = sample.outcome
    return Sample(
        group=held.key,
        episode=sample.index,
        index=0,
        tokens=sample.tokens,
        loss_mask=np.concatenate(counts),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        branches=np.concatenate([part.branches for part in parts]),
        status=SampleStatus.ABORTED,
        reward=sample.reward,
        failure=sample.failure,
        terms=outcome.terms if outcome is not None and outcome.value == sample.reward else {},
        metadata={"own": sample.metadata, "status": str(sample.status or ""), "parts": layout},
        kept=joined([part.kept if part.chosen and part.trained else None for part in parts], map(_length, parts)),
        experts=sample.experts,
    )


def _length(part: Part) -> int:
    return len(part.tokens)


def _parts(sample: Sample) -> list[Part]:
    """Raises CodecError."""
    metadata: dict[str, Any] = sample.metadata
    if typed(metadata.get("status"), str, "the status") not in _STATUSES:
        raise CodecError(f"a sample was kept with the status {metadata['status'][:40]!r}")
    typed(metadata.get("own"), dict, "the metadata")
    parts, start = [], 0
    for layout in typed(metadata.get("parts"), list, "the parts"):
        if len(typed(layout, list, "a part")) != 3:
            raise CodecError(f"a part of a sample has {len(layout)} fields, not 3")
        chosen, trained = (typed(each, bool, "a part") for each in layout[:2])
        end = start + typed(layout[2], int, "a part's length")
        here = slice(start, end)
        kept = sample.kept[here] if sample.kept is not None and chosen and trained else None
        tokens, logprobs = sample.tokens[here], sample.logprobs[here]
        parts.append(Part(chosen, trained, tokens, logprobs, sample.versions[here], sample.branches[here], kept))
        start = end
    if start != len(sample):
        raise CodecError(f"the parts of a sample have {start} tokens, and it has {len(sample)}")
    return parts
