"""One history of an episode: what was given to the policy, and what it chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets, joined
from headrace.engines.completions import Completion
from headrace.engines.protocol import FinishReason
from headrace.experience.sample import GroupKey, Sample, SampleStatus
from headrace.experience.text.conversation import Messages

Experts = NDArray[np.unsignedinteger] | None
"""[t, layers, k]: of the first t tokens of a history; see `Sample.experts`."""


def experts_so_far(known: Experts, told: Experts, length: int) -> Experts:
    """Of a history of `length` tokens that ends with a completion. `known`: of its first tokens, which stay as they
    are; `told`: what the completion has, of all tokens but the last. What is told of another history is left out."""
    if told is None or len(told) != length - 1:
        return known
    return told if known is None else np.concatenate([known, told[len(known) :]])


class Trajectory:
    """Grows by completions and observations; every token that the policy chose keeps its log-prob and version."""

    def __init__(self, prompt: Sequence[int] | NDArray[np.int32]) -> None:
        self.status = SampleStatus.COMPLETED
        """Follows the last completion, unless a workflow sets it."""
        self.reward: float | None = None
        """Set by a workflow or environment that scores by itself; otherwise the reward function is asked."""
        self.response: str | None = None
        """What the reward function gets; the text of the last completion unless set."""
        self.messages: Messages | None = None
        """The conversation, for rewards with a parameter `messages`; unless set, what `turns` says as text."""
        self.metadata: dict[str, Any] = {}
        """Free, JSON-like values only; stored with the sample."""
        self._tokens: list[NDArray[np.int32]] = []
        self._chosen: list[bool] = []
        self._mask: list[NDArray[np.bool_]] = []
        self._logprobs: list[NDArray[np.float32]] = []
        self._versions: list[NDArray[np.int32]] = []
        self._branches: list[NDArray[np.int32]] = []
        self._kept: list[KeptSets | None] = []
        self._temperatures: list[float | None] = []
        self.experts: Experts = None
        """Of its first tokens: what they were routed to, where that is recorded."""
        self._last: NDArray[np.int32] = np.empty(0, np.int32)
        self.add_observation(prompt)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All token ids so far: what the next completion follows."""
        return np.concatenate(self._tokens)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return sum(map(len, self._tokens))

    @property
    def last_completion(self) -> NDArray[np.int32]:
        """Token ids of the policy's last turn; empty before the first."""
        return self._last

    @property
    def has_completion(self) -> bool:
        """Whether there is a token that the policy chose."""
        return any(chosen and len(part) for chosen, part in zip(self._chosen, self._tokens, strict=True))

    @property
    def turns(self) -> list[tuple[bool, NDArray[np.int32]]]:
        """Whether the policy chose them, and the token ids, of what was added one after another: the prompt first."""
        return [part for part in zip(self._chosen, self._tokens, strict=True) if len(part[1])]

    def add_completion(self, completion: Completion) -> None:
        """Append what the policy chose. What is greedy is never trained on."""
        if completion.temperature == 0:
            self._append_given(completion.tokens, True, completion.temperature)
        else:
            self._append(
                completion.tokens,
                True,
                completion.logprobs,
                completion.versions,
                completion.branches,
                completion.kept if len(completion.tokens) else None,
                completion.temperature,
            )
        self.experts = experts_so_far(self.experts, completion.experts, self.length)
        self._last = completion.tokens
        truncated = completion.finish_reason is FinishReason.LENGTH
        self.status = SampleStatus.TRUNCATED if truncated else SampleStatus.COMPLETED

    def add_observation(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append what the policy was given: it is never trained on these tokens."""
        self._append_given(np.asarray(tokens, dtype=np.int32), False)

    def to_sample(
        self,
        group: GroupKey,
        episode: int,
        index: int,
        *,
        reward: float | None = None,
        failure: str | None = None,
        max_context: int | None = None,
        terms: Mapping[str, float] = MappingProxyType({}),
    ) -> Sample:
        """The row of the experience table. With a `failure` its status is FAILED. What is longer than `max_context`
        tokens loses the end of its last observation, which no model could read."""
        mask = np.concatenate(self._mask)
        kept = joined(self._kept, map(len, self._tokens))
        length = len(mask)
        if max_context is not None and length > max_context and not mask[max_context:].any():
            length = max_context
        return Sample(
            group=group,
            episode=episode,
            index=index,
            tokens=self.tokens[:length],
            loss_mask=mask[:length],
            logprobs=np.concatenate(self._logprobs)[:length],
            versions=np.concatenate(self._versions)[:length],
            branches=np.concatenate(self._branches)[:length],
            status=self.status if failure is None else SampleStatus.FAILED,
            reward=reward,
            failure=failure,
            metadata=self.metadata,
            kept=None if kept is None else kept[:length],
            temperatures=self._temperatures_of(length),
            experts=None if self.experts is None else self.experts[:length],
            terms=dict(terms),
        )

    def _temperatures_of(self, length: int) -> NDArray[np.float32] | None:
        """Of the first `length` tokens; None where no part has any."""
        if all(each is None for each in self._temperatures):
            return None
        of_parts = np.array([each or 0.0 for each in self._temperatures], dtype=np.float32)
        return np.repeat(of_parts, [len(part) for part in self._tokens])[:length]

    def _append_given(self, tokens: NDArray[np.int32], chosen: bool, temperature: float | None = None) -> None:
        """Tokens that are not trained on, whether or not the policy chose them."""
        none = np.full(len(tokens), -1, dtype=np.int32)
        self._append(tokens, chosen, np.zeros(len(tokens), np.float32), none, none, None, temperature, trained=False)

    def _append(
        self,
        tokens: NDArray[np.int32],
        chosen: bool,
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
        branches: NDArray[np.int32],
        kept: KeptSets | None,
        temperature: float | None,
        *,
        trained: bool = True,
    ) -> None:
        self._tokens.append(tokens)
        self._chosen.append(chosen)
        self._mask.append(np.full(len(tokens), trained, dtype=np.bool_))
        self._logprobs.append(logprobs)
        self._versions.append(versions)
        self._branches.append(branches)
        self._kept.append(kept)
        self._temperatures.append(temperature)
