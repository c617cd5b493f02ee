"""Samples as the record of rollouts keeps them, and which of a batch it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.experience.records.rollout_codec import RolloutDetail, encode_detail
from headrace.experience.sample import Group, Sample, SampleStatus
from headrace.store.rollouts import DROPPED, Rollout, Turn

_QUOTED, _REWARDS_QUOTED = 120, 4
"""Characters of a text, and different rewards, that are quoted."""

_METADATA_BYTES = 4096
"""Of a sample's metadata, as JSON."""

Decode = Callable[[NDArray[np.int32]], str]
"""Token ids to text, special tokens included."""


def turns_of(sample: Sample, decode: Decode) -> tuple[Turn, ...]:
    """What the policy was given and what it wrote, in turn."""
    found, begin = [], 0
    for by_policy, part in groupby(sample.loss_mask.tolist()):
        end = begin + len(list(part))
        found.append(Turn(by_policy, decode(sample.tokens[begin:end])))
        begin = end
    return tuple(found)


def rollout_of(
    prompt_id: str,
    sample: Sample,
    decode: Decode,
    *,
    batch: int,
    at: float,
    dropped: str | None = None,
    reward: float | None = None,
    trained: NDArray[np.bool_] | None = None,
    advantages: NDArray[np.float32] | None = None,
    trainer_logprobs: NDArray[np.float32] | None = None,
) -> Rollout:
    """`prompt_id`: of the sample's prompt. `at`: seconds since the epoch. `dropped`: why its group is not trained on.
    `reward`: with what models said of it; the sample's own unless given. The arrays, [T], are of a sample that was
    trained on."""
    chosen = sample.loss_mask
    reward = sample.reward if reward is None else reward
    mean = float(advantages[chosen].mean()) if advantages is not None and chosen.any() else None
    stale = None
    if trained is not None and trained.any():
        stale = int(max(batch - sample.versions[trained].min(), 0))
    detail = RolloutDetail(
        tokens=sample.tokens,
        loss_mask=chosen,
        logprobs=sample.logprobs,
        versions=sample.versions,
        branches=sample.branches,
        trained=trained,
        advantages=advantages,
        trainer_logprobs=trainer_logprobs,
        temperatures=sample.temperatures,
        terms=sample.terms,
        metadata=_cut(sample.metadata),
    )
    failed = sample.status is SampleStatus.FAILED
    return Rollout(
        batch=batch,
        at=at,
        key=sample.group,
        episode=sample.episode,
        sample=sample.index,
        prompt_id=prompt_id,
        status=str(sample.status) if failed or dropped is None else DROPPED,
        reason=sample.failure if failed else dropped,
        reward=None if reward is None else float(reward),
        advantage=mean,
        tokens=sample.response_tokens,
        staleness=stale,
        turns=turns_of(sample, decode),
        data=encode_detail(detail),
    )


def _cut(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What there is room for, entry by entry, with a note on what is left out."""
    kept: dict[str, Any] = {}
    room, left = _METADATA_BYTES, []
    for name, value in metadata.items():
        size = len(json.dumps({name: value}))
        if size <= room:
            kept[name] = value
            room -= size
        else:
            left.append(size)
    return kept | ({"...": f"left out of the record: {len(left)} of {sum(left)} bytes"} if left else {})


def quoted(group: Group, decode: Decode) -> str:
    """A sample of it, on one line: what was asked, answered and earned, and what all its samples earned."""
    sample = group.samples[0]
    given = "".join(turn.text for turn in turns_of(sample, decode)[:1] if not turn.by_policy)
    written = "".join(turn.text for turn in turns_of(sample, decode) if turn.by_policy)
    rewards = sorted({f"{one.reward:g}" for one in group.trainable if one.reward is not None})
    earned = ", ".join(rewards[:_REWARDS_QUOTED]) + (", ..." if len(rewards) > _REWARDS_QUOTED else "")
    return (
        f"the prompt {_brief(given)}, an answer of {_brief(written)}, and the reward {earned or 'of none'} "
        f"for its {len(group.samples)} samples"
    )


def _brief(text: str) -> str:
    """Its end, where it is long, with what has no glyph written out."""
    return repr(text if len(text) <= _QUOTED else f"...{text[-_QUOTED:]}")


def kept_of(groups: Sequence[int], rewards: Sequence[float], count: int | None, seed: tuple[int, int]) -> list[int]:
    """Places of the samples of a batch that are kept: the best and the worst, then whole groups as they are drawn, up
    to `count` samples; all if that is None. `groups`: which group each sample is of. `seed`: of the run, and the batch.
    """
    places = range(len(rewards))
    if count is None or count >= len(rewards):
        return list(places)
    ends = [max(places, key=lambda i: (rewards[i], -i)), min(places, key=lambda i: (rewards[i], i))] if rewards else []
    names = list(dict.fromkeys(groups))
    drawn = np.random.default_rng(seed).permutation(len(names))
    order = [place for name in drawn for place in places if groups[place] == names[name]]
    return sorted(list(dict.fromkeys([*ends, *order]))[:count])
