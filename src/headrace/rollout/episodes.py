"""The episodes of a group, side by side: played, scored, and made into samples."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engines.completions import GenerationAborted, NotServed
from headrace.engines.place import Place
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rewards.reward_pool import GroupScorer, Scorer
from headrace.rollout.episode_scoring import (
    EpisodeScoring,
    Played,
    check_trajectories,
    empty_sample,
    failure_of,
)
from headrace.rollout.policy import Policy, PolicySettings
from headrace.rollout.trajectory import Trajectory
from headrace.rollout.user_code import called
from headrace.rollout.workflow import Workflow
from headrace.runtime.leaving import ended_or_left
from headrace.runtime.patience import Patience
from headrace.runtime.protocol import Clock
from headrace.runtime.together import together
from headrace.weights.version import Version

_GRACE_S = 5.0
"""In which an episode whose time is up ends."""


class EpisodeRunner:
    """Plays `samples_per_prompt` episodes of a prompt at a time.

    Whatever goes wrong in an episode fails its own samples, with a reason, and nothing else. Each has a copy of the
    prompt, which it may change; rewards are given the dataset's. Cancelling `run_group` aborts what its episodes asked
    of engines.
    """

    def __init__(
        self,
        *,
        workflow: Workflow,
        policy: PolicySettings,
        rewards: Scorer,
        clock: Clock,
        samples_per_prompt: int,
        episode_timeout_s: float,
        group_rewards: GroupScorer | None = None,
    ) -> None:
        """See `EpisodeScoring`."""
        self._scoring = EpisodeScoring(policy, rewards, group_rewards)
        self._workflow = workflow
        self._policy = policy
        self._clock = clock
        self._samples_per_prompt = samples_per_prompt
        self._episode_timeout_s = episode_timeout_s

    async def run_group(
        self,
        key: GroupKey,
        prompt: Prompt,
        start_version: Version,
        deadline: int,
        issue: int = 0,
        place: Place | None = None,
    ) -> Group:
        """All episodes of one attempt, in order of episode. `deadline` is the last batch that may train them whole.
        `issue`: how often the attempt was given out before. `place`: the engine that was chosen for it.

        Raises NotServed if no engine came back that may serve it: that is no failure of its samples.
        """
        episodes = range(self._samples_per_prompt)
        played = await together(
            (
                self._episode(key, episode, prompt, start_version, issue, None if place is None else place.of_episode())
                for episode in episodes
            ),
            (f"episode {key}/{episode}" for episode in episodes),
        )
        samples = await self._scoring.samples(key, await self._scoring.judge_together(played, prompt))
        return Group(key, prompt.prompt_id, start_version.number, deadline, samples, issue)

    async def _episode(
        self, key: GroupKey, episode: int, prompt: Prompt, min_version: Version, issue: int, place: Place | None
    ) -> Played | list[Sample]:
        patience = Patience(self._clock, self._episode_timeout_s)
        policy = Policy(
            self._policy,
            group=key,
            episode=episode,
            min_version=min_version,
            tools=prompt.tools,
            issue=issue,
            place=place,
            still=(patience.still,),
        )
        try:
            trajectories = await patience.wait_for(
                ended_or_left(self._play(policy, prompt), _GRACE_S, policy.leave), f"episode {key}/{episode}"
            )
            check_trajectories(trajectories)
        except GenerationAborted:
            return [empty_sample(key, episode, SampleStatus.ABORTED, None)]
        except NotServed:
            raise
        except Exception as error:
            return [empty_sample(key, episode, SampleStatus.FAILED, failure_of(error))]
        if any(trajectory.status is SampleStatus.ABORTED for trajectory in trajectories):
            return [empty_sample(key, episode, SampleStatus.ABORTED, None)]
        try:
            return await self._scoring.score(trajectories, prompt)
        except Exception as error:  # tokens that do not decode
            return [empty_sample(key, episode, SampleStatus.FAILED, failure_of(error))]

    async def _play(self, policy: Policy, prompt: Prompt) -> Sequence[Trajectory]:
        played = await called(self._workflow.run, prompt.copied(), policy)
        return [played] if isinstance(played, Trajectory) else played
