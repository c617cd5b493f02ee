"""One sample as a rollout function sees it: it grows by what the policy chooses and by what it is given, may be cut off
in the midst of a completion, and goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.completions import Completion, Cut, GenerationAborted, NotServed, joined_parts
from headrace.engines.protocol import FinishReason, TokenChunk
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import SampleStatus
from headrace.experience.text.conversation import Messages, opening
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.episode_scoring import failure_of
from headrace.rollout.policy import Policy
from headrace.rollout.trajectory import Experts, Trajectory, experts_so_far
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.weights.version import Version

_NONE = np.empty(0, np.int32)
_GRACE_S = 2.0
"""An engine ends a request between two decode steps."""
FINISHED = (SampleStatus.COMPLETED, SampleStatus.TRUNCATED, SampleStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that came together. All arrays have the same length."""

    chosen: bool
    """By the policy."""
    trained: bool
    """Of tokens that the policy chose: whether they have a part in the loss. Those that have not count as given."""
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    branches: NDArray[np.int32]
    kept: KeptSets | None = None

    def __getitem__(self, part: slice) -> Part:
        return replace(
            self,
            tokens=self.tokens[part],
            logprobs=self.logprobs[part],
            versions=self.versions[part],
            branches=self.branches[part],
            kept=None if self.kept is None else self.kept[part],
        )


class Holder(Protocol):
    """The group of a sample, as the sample sees it."""

    @property
    def is_live(self) -> bool:
        """Whether something may still come of it."""

    def not_served(self, error: NotServed) -> None:
        """No engine may serve it any more: it ends, through no fault of its own."""


class RolloutSample:
    """A sample of a group that a rollout function was given.

    `status` is None until something has ended it, `ABORTED` where a completion was cut off: both may be gone on with.
    """

    def __init__(
        self,
        prompt: Prompt,
        index: int,
        policy: Policy,
        holder: Holder,
        parts: Sequence[Part],
        *,
        limit: int,
        score: Callable[[RolloutSample], Awaitable[RewardOutcome]],
    ) -> None:
        """`index`: which of its group. `parts`: the prompt first. `limit`: most tokens of a turn, unless `generate` is
        told."""
        self.prompt = prompt.copied()
        """With `content`, `row` and `prompt_id`; this sample's own. Rewards are given the dataset's."""
        self.index = index
        self.policy = policy
        """To encode and decode."""
        self.status: SampleStatus | None = None
        self.failure: str | None = None
        """Why it failed."""
        self.reward: float | None = None
        """Set it, or have `score` do so. Without it the reward function is asked once the sample is added."""
        self.metadata: dict[str, Any] = {}
        """Free, JSON-like values only; kept with the sample."""
        self.outcome: RewardOutcome | None = None
        """What `score` gave."""
        self.holder = holder
        """Its group."""
        self.experts: Experts = None
        """Of its first tokens: what they were routed to, where that is recorded."""
        self._content = prompt.content
        self._parts = list(parts)
        self._limit = limit
        self._score = score
        self._request: asyncio.Task[Completion] | None = None
        self._coming: list[TokenChunk] = []
        self._cut = Cut()
        self._cut_off = joined_parts([], FinishReason.ABORT)
        """What the last completion had that did not come to its end."""

    @property
    def row(self) -> dict[str, Any]:
        """Of the dataset; a copy of its own."""
        return self.prompt.row

    @property
    def is_finished(self) -> bool:
        """Whether its group may be added as far as it goes: it was completed, truncated, or has failed."""
        return self.status in FINISHED

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that it has, the prompt first."""
        return tuple(self._parts)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All token ids, the prompt's included: what the next completion follows."""
        return np.concatenate([part.tokens for part in self._parts])

    @property
    def response_tokens(self) -> NDArray[np.int32]:
        """Token ids behind the prompt."""
        return np.concatenate([_NONE, *(part.tokens for part in self._parts[1:])])

    @property
    def response_length(self) -> int:
        """Tokens behind the prompt."""
        return sum(len(part.tokens) for part in self._parts[1:])

    @property
    def response(self) -> str:
        """Text of the policy's last turn, without special tokens: what a reward function is given."""
        return self.policy.decode(self._last_turn())

    @property
    def versions(self) -> NDArray[np.int32]:
        """Of each token the number of the version that sampled it; -1 where the policy did not, or where it is not
        trained on."""
        return np.concatenate(
            [part.versions if _counts(part) else np.full(len(part.tokens), -1) for part in self._parts]
        )

    def add_observation(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append what the policy is given: never trained on. It is the policy's turn then."""
        self.status = None
        ids = np.asarray(tokens, dtype=np.int32)
        self._parts.append(given(ids))

    async def generate(self, max_new_tokens: int | None = None) -> Completion:
        """Have the policy go on from what there is; `status` says how it ended. `max_new_tokens`: of this call. Unless
        given a turn has as many as `rollout.sampling` lets it, those from before it was cut off included.

        One that is finished stays as it is, until an observation is added. Ends early, with the tokens so far and
        status ABORTED, by `RolloutBuffer.abort`, and once nothing can come of the
        group any more. What an engine fails fails the sample. Raises nothing of this.
        """
        if self._request is not None:
            raise RuntimeError("the sample is being generated already: wait for the first call to end")
        if self.is_finished:
            return joined_parts([], FinishReason.LENGTH if self.status is SampleStatus.TRUNCATED else FinishReason.STOP)
        begun = len(self._last_turn())
        limit = self._limit - begun if max_new_tokens is None else max_new_tokens
        if not self.holder.is_live:
            await self.policy.settings.clock.sleep(0.0)  # one that asks again and again can be cancelled here
        if not self.holder.is_live or limit <= 0:
            self.status = SampleStatus.TRUNCATED if self.holder.is_live else SampleStatus.ABORTED
            return joined_parts([], FinishReason.LENGTH if self.holder.is_live else FinishReason.ABORT)
        self._coming, self._cut = [], Cut()
        asked = self.policy.generate(
            self.tokens, max_new_tokens=limit, came=self._coming.append, cut=self._cut, begun=begun
        )
        request = self._request = asyncio.ensure_future(asked)
        try:
            completion = await request
        except asyncio.CancelledError:
            self._cut_if(request)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            completion = self._cut_off
        except GenerationAborted:
            self._cut_if(request)
            completion = self._cut_off
        except NotServed as error:
            if self._cut_if(request):
                self.holder.not_served(error)
            completion = self._cut_off
        except Exception as error:
            if self._cut_if(request):
                self.status, self.failure = SampleStatus.FAILED, failure_of(error)
            completion = self._cut_off
        else:
            if self._request is request:
                self._request = None
                self._take(completion)
        return completion

    async def score(self) -> float | None:
        """Have the reward function score the sample: its reward, None if that failed, and the sample with it."""
        if self.status not in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED):
            return None
        outcome = await self._score(self)
        if outcome.failure is not None:
            self.status, self.failure = SampleStatus.FAILED, outcome.failure
        self.outcome, self.reward = outcome, outcome.value
        return self.reward

    def ask_to_end(self) -> asyncio.Task[Completion] | None:
        """Have the engine end the completion that is under way. It ends soon, with all tokens that were sampled; or
        not, where no engine is at it. None if there is none."""
        if self._request is not None:
            self._cut.end()
        return self._request

    def cut(self) -> None:
        """End the completion that is under way, and keep the tokens that came. Nothing happens if there is none."""
        request, self._request = self._request, None
        if request is None:
            return
        if request.done() and not request.cancelled() and request.exception() is None:
            self._cut_off = request.result()
        else:
            ended = self._coming[-1].finish_reason if self._coming else None
            self._cut_off = joined_parts(self._coming, ended or FinishReason.ABORT)
            request.cancel()
        self._take(self._cut_off)

    def _cut_if(self, request: asyncio.Task[Completion]) -> bool:
        """`cut`, and True, if this one is under way: it may have been cut off before, and the next one begun."""
        is_under_way = self._request is request
        if is_under_way:
            self.cut()
        return is_under_way

    def forget_older_than(self, number: int, holds: Callable[[Version], bool] = lambda version: True) -> None:
        """Tokens of versions before this number, and of those that the run's line does not hold, are not trained on
        from now on."""
        self._parts = [
            each for part in self._parts for each in _without(part, lambda v: v.number < number or not holds(v))
        ]

    def restore(self, parts: Sequence[Part], experts: Experts = None) -> None:
        """What it has behind the prompt."""
        self._parts[1:] = parts
        self.experts = experts

    def restart(self) -> None:
        """Back to the prompt, as if it had never been begun."""
        self._parts, self.experts, self.metadata = self._parts[:1], None, {}
        self.status, self.failure, self.reward, self.outcome = None, None, None, None

    @property
    def oldest(self) -> int | None:
        """Number of the oldest version of which a token is to be trained on; None if none is."""
        return min(
            (int(part.versions.min()) for part in self._parts if _counts(part) and len(part.tokens)), default=None
        )

    def trajectory(self) -> Trajectory:
        """What is scored and trained. Without the reward."""
        made = Trajectory(self._parts[0].tokens)
        for part in self._parts[1:]:
            if _counts(part):
                made.add_completion(
                    Completion(part.tokens, part.logprobs, part.versions, part.branches, FinishReason.STOP, part.kept)
                )
            else:
                made.add_observation(part.tokens)
        made.experts = self.experts
        assert self.status is not None
        made.status, made.metadata, made.response = self.status, self.metadata, self.response
        made.messages = self._messages()
        return made

    def _take(self, completion: Completion) -> None:
        if len(completion.tokens):
            arrays = (completion.tokens, completion.logprobs, completion.versions, completion.branches)
            self._parts.append(Part(True, True, *arrays, completion.kept))
            self.experts = experts_so_far(self.experts, completion.experts, sum(len(p.tokens) for p in self._parts))
        match completion.finish_reason:
            case FinishReason.STOP:
                self.status = SampleStatus.COMPLETED
            case FinishReason.LENGTH:
                self.status = SampleStatus.TRUNCATED
            case _:
                self.status = SampleStatus.ABORTED

    def _turns(self) -> list[tuple[bool, NDArray[np.int32]]]:
        """Behind the prompt: whether the policy chose them, and the ids, of neighbours together."""
        turns: list[tuple[bool, list[NDArray[np.int32]]]] = []
        for part in self._parts[1:]:
            if not turns or turns[-1][0] != part.chosen:
                turns.append((part.chosen, []))
            turns[-1][1].append(part.tokens)
        return [(chosen, np.concatenate(parts)) for chosen, parts in turns]

    def _last_turn(self) -> NDArray[np.int32]:
        """Of the policy, if it is its turn, or the last was."""
        turns = self._turns()
        return turns[-1][1] if turns and turns[-1][0] else _NONE

    def _messages(self) -> Messages | None:
        turns = self._turns()
        if len(self._parts) == 2 and _counts(self._parts[1]):
            return None
        roles = {True: "assistant", False: self.policy.observation_role}
        said: Messages = [{"role": roles[chosen], "content": self.policy.decode(ids)} for chosen, ids in turns]
        return [*opening(self._content), *said]


async def end_all(samples: Iterable[RolloutSample], clock: Clock) -> None:
    """End the completions that are under way, with all tokens that were sampled for them. What does not end in time is
    cut off, with the tokens that came."""
    samples = list(samples)
    requests = [request for sample in samples if (request := sample.ask_to_end()) is not None]
    if requests:
        with suppress(WaitTimeout):
            await clock.wait_for(asyncio.wait(requests), _GRACE_S, "completions to be ended")
    for sample in samples:
        sample.cut()


def given(tokens: NDArray[np.int32]) -> Part:
    """What the policy did not choose."""
    none = np.full(len(tokens), -1, dtype=np.int32)
    return Part(False, False, tokens, np.zeros(len(tokens), dtype=np.float32), none, none)


def _counts(part: Part) -> bool:
    return part.chosen and part.trained


def _without(part: Part, forgets: Callable[[Version], bool]) -> list[Part]:
    """The part, where neighbours whose versions are forgotten, and those whose are not, are parts of their own."""
    if not _counts(part) or not len(part.tokens):
        return [part]
    versions = [Version(int(b), int(n)) for b, n in zip(part.branches, part.versions, strict=True)]
    forgotten = {version: forgets(version) for version in set(versions)}
    old = np.array([forgotten[version] for version in versions])
    edges = [0, *(np.flatnonzero(np.diff(old)) + 1).tolist(), len(old)]
    pieces = [part[start:end] for start, end in pairwise(edges)]
    return [replace(piece, trained=not old[start]) for piece, start in zip(pieces, edges, strict=False)]
