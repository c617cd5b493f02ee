"""How the episodes of a group that were played are scored, and made into samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import EngineError, RequestError
from headrace.experience.failures import FailureKind, describe
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import check_metadata
from headrace.experience.sample import GroupKey, Sample, SampleStatus
from headrace.experience.text.conversation import Messages, are_messages, conversation, opening
from headrace.plugins.raised import describe_exception
from headrace.rewards.outcome import NotARewardError, RewardOutcome, as_reward
from headrace.rewards.reward_pool import GroupScorer, Scorer
from headrace.rollout.policy import PolicySettings
from headrace.rollout.trajectory import Trajectory
from headrace.rollout.user_code import CodeLeft
from headrace.runtime.off_loop import off_loop
from headrace.runtime.protocol import WaitTimeout

_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that went well: its histories, what each got, and what the last one answered."""

    trajectories: Sequence[Trajectory]
    outcomes: list[RewardOutcome]
    shares: list[bool]
    """Whether a history has the reward of the last one, and not one of its own."""
    response: str
    messages: Messages | None
    """The conversation, where it is more than the prompt and the response."""


class EpisodeScoring:
    """Of one run, or of one held-out set."""

    def __init__(self, policy: PolicySettings, rewards: Scorer, group_rewards: GroupScorer | None = None) -> None:
        """`group_rewards` has the last word on the rewards of a group, once all of its episodes have ended."""
        self._policy = policy
        self._rewards = rewards
        self._group_rewards = group_rewards

    async def score(self, trajectories: Sequence[Trajectory], prompt: Prompt) -> Played:
        """An outcome for each trajectory. The reward function judges the last; those before share its outcome."""
        own = [_own_outcome(trajectory) for trajectory in trajectories]
        last = trajectories[-1]
        needs_text = own[-1] is None or self._group_rewards is not None
        response, messages, after = "", None, _NONE
        if needs_text:
            response, messages, after = await off_loop(self._policy.services, last.length, self._text_of, last, prompt)
        final = own[-1]
        if final is None:
            before, tokens = trajectories[:-1], sum(each.length for each in trajectories[:-1])
            earlier = await off_loop(self._policy.services, tokens, self._conversations, before, prompt)
            final = await self._rewards.score(response, prompt.row, prompt.content, messages, after, earlier)
        shares = [outcome is None for outcome in own[:-1]] + [True]
        return Played(trajectories, [outcome or final for outcome in own[:-1]] + [final], shares, response, messages)

    async def judge_together(self, played: list[Played | list[Sample]], prompt: Prompt) -> list[Played | list[Sample]]:
        """The group's function, if there is one, replaces the rewards of the episodes that did not fail."""
        group_rewards = self._group_rewards
        if group_rewards is None:
            return played
        judged = {i: one for i, one in enumerate(played) if isinstance(one, Played) and not one.outcomes[-1].failure}
        if not judged:
            return played
        outcomes = await group_rewards.score_group(
            [one.response for one in judged.values()],
            prompt.row,
            prompt.content,
            [one.outcomes[-1].value for one in judged.values()],
            [one.messages for one in judged.values()],
        )
        changed = dict(zip(judged, outcomes, strict=True))
        return [
            _with_final(one, changed[i]) if isinstance(one, Played) and i in changed else one
            for i, one in enumerate(played)
        ]

    async def samples(self, key: GroupKey, played: Sequence[Played | list[Sample]]) -> tuple[Sample, ...]:
        """Those of each episode, in order. One whose arrays do not fit each other has failed."""
        tokens = sum(trajectory.length for one in played if isinstance(one, Played) for trajectory in one.trajectories)
        return await off_loop(self._policy.services, tokens, _samples_of_all, key, played, self._policy)

    def _text_of(self, trajectory: Trajectory, prompt: Prompt) -> tuple[str, Messages | None, NDArray[np.int32]]:
        """The response, the conversation, and the tokens behind the prompt."""
        return self._response(trajectory), self._messages(trajectory, prompt), _after_prompt(trajectory)

    def _conversations(self, trajectories: Sequence[Trajectory], prompt: Prompt) -> list[Messages]:
        return [
            conversation(prompt.content, self._response(each), self._messages(each, prompt)) for each in trajectories
        ]

    def _response(self, trajectory: Trajectory) -> str:
        if trajectory.response is not None:
            return trajectory.response
        return self._policy.text.decode(trajectory.last_completion)

    def _messages(self, trajectory: Trajectory, prompt: Prompt) -> Messages | None:
        if trajectory.messages is not None:
            return trajectory.messages
        turns = trajectory.turns[1:]
        if len(turns) == 1:
            return None
        said = [(chosen, self._policy.text.decode(tokens)) for chosen, tokens in turns]
        roles = {True: "assistant", False: self._policy.observation_role}
        return [*opening(prompt.content), *({"role": roles[chosen], "content": text} for chosen, text in said)]


def _after_prompt(trajectory: Trajectory) -> NDArray[np.int32]:
    return np.concatenate([np.empty(0, np.int32), *(tokens for _, tokens in trajectory.turns[1:])])


def _with_final(played: Played, final: RewardOutcome) -> Played:
    outcomes = [
        replace(final, terms=own.terms) if shares else own
        for own, shares in zip(played.outcomes, played.shares, strict=True)
    ]
    return replace(played, outcomes=outcomes)


def _samples_of_all(
    key: GroupKey, played: Sequence[Played | list[Sample]], policy: PolicySettings
) -> tuple[Sample, ...]:
    """Those of each episode, in order."""
    return tuple(sample for episode, one in enumerate(played) for sample in _samples(key, episode, one, policy))


def _samples(key: GroupKey, episode: int, played: Played | list[Sample], policy: PolicySettings) -> list[Sample]:
    if not isinstance(played, Played):
        return played
    try:
        samples = [
            trajectory.to_sample(
                key,
                episode,
                index,
                reward=outcome.value,
                failure=outcome.failure,
                terms=outcome.terms,
                max_context=policy.max_context,
            )
            for index, (trajectory, outcome) in enumerate(zip(played.trajectories, played.outcomes, strict=True))
        ]
        if policy.return_kept and policy.sampling.truncates:
            for sample in samples:
                if sample.temperatures is None:  # else a token need not be of a cut distribution
                    _check_kept(sample)
        if policy.return_experts:
            for sample in samples:
                _check_experts(sample)
        return samples
    except Exception as error:  # arrays that do not fit each other
        return [empty_sample(key, episode, SampleStatus.FAILED, failure_of(error))]


def _check_kept(sample: Sample) -> None:
    """Raises unless each token that the policy chose has its kept set: its log-prob is over that."""
    sets = np.zeros(len(sample), np.int32) if sample.kept is None else sample.kept.counts
    if missing := int((sample.loss_mask & (sets == 0)).sum()):
        raise ValueError(
            f"{missing} tokens that were sampled with top_p or top_k have no kept set; add what `generate` gave, or "
            "`completion.first(n)` of it"
        )


def _check_experts(sample: Sample) -> None:
    """Raises unless it is known what every token was routed to that a log-prob of the policy's depends on."""
    if missing := sample.unrouted:
        raise ValueError(
            f"of {missing} tokens it is not known which experts they were routed to (algorithm.router_replay); add "
            "what `generate` gave behind the tokens that it was given, or `completion.first(n)` of it"
        )


def _own_outcome(trajectory: Trajectory) -> RewardOutcome | None:
    """What the workflow or environment gave, if it did."""
    if trajectory.reward is None:
        return None
    try:
        return RewardOutcome(as_reward(trajectory.reward))
    except NotARewardError as error:
        return RewardOutcome(None, describe(FailureKind.REWARD_NAN, f"the workflow {error}"))


def check_trajectories(trajectories: object) -> None:
    """Raises unless this is what a workflow may return."""
    if not isinstance(trajectories, Sequence) or not trajectories:
        raise TypeError(f"the workflow returned {type(trajectories).__name__}; return one Trajectory, or several")
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            raise TypeError(f"the workflow returned a {type(trajectory).__name__} among its trajectories")
        if trajectory.status is SampleStatus.FAILED:
            raise ValueError("the workflow set the status failed; raise an error that says why instead")
        if trajectory.response is not None and not isinstance(trajectory.response, str):
            raise TypeError(f"the trajectory's response is a {type(trajectory.response).__name__}; set text")
        if trajectory.messages is not None and not are_messages(trajectory.messages):
            raise TypeError(
                "the trajectory's messages are no list of {'role': text, 'content': text} with JSON values; set one"
            )
        if not trajectory.has_completion:
            raise ValueError("the policy chose no token: no room was left after the prompt, or it was never asked")
        check_metadata(trajectory.metadata)


def failure_of(error: Exception) -> str:
    match error:
        case WaitTimeout():
            return describe(FailureKind.TIMEOUT, str(error))
        case EngineError() | RequestError():
            return describe(FailureKind.ENGINE, str(error))
        case CodeLeft():
            return describe(FailureKind.WORKFLOW, str(error))
        case _:
            return describe(FailureKind.WORKFLOW, describe_exception(error))


def empty_sample(key: GroupKey, episode: int, status: SampleStatus, failure: str | None) -> Sample:
    """A sample of an episode that left nothing to train on."""
    return Sample(
        group=key,
        episode=episode,
        index=0,
        tokens=np.empty(0, np.int32),
        loss_mask=np.empty(0, np.bool_),
        logprobs=np.empty(0, np.float32),
        versions=np.empty(0, np.int32),
        branches=np.empty(0, np.int32),
        status=status,
        failure=failure,
    )
