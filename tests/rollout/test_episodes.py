from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rollout_helpers import EOS, PaperRewards, ScriptedEngine, chunk, dead, hangs, ids, says, settings

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.protocol import FinishReason, GenerateRequest, RequestError, SamplingParams, TokenChunk
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import decode_group, encode_group
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.policy import Completion, Policy
from headrace.rollout.single_turn import SingleTurn
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.inline import InlineRuntime, Span, SystemClock
from headrace.runtime.off_loop import FEW, LANE
from headrace.weights.version import Version

KEY = GroupKey(1, 5, 0)
PROMPT = Prompt("p9", "3+4=", {"answer": "7"})


def runner(engine: Any, workflow: Any = None, rewards: Any = None, samples: int = 3, **changes: Any) -> EpisodeRunner:
    return EpisodeRunner(
        workflow=workflow or SingleTurn(),
        policy=settings(engine, **changes),
        rewards=rewards or PaperRewards(),
        clock=SystemClock(),
        samples_per_prompt=samples,
        episode_timeout_s=0.3,
    )


def run(engine: Any, workflow: Any = None, rewards: Any = None, samples: int = 3, **changes: Any) -> Group:
    episodes = runner(engine, workflow, rewards, samples, **changes)
    group = asyncio.run(episodes.run_group(KEY, PROMPT, engine.version, 6))
    assert all(isinstance(sample, Sample) for sample in decode_group(encode_group(group)).samples)
    return group


def test_a_group_has_its_episodes_in_order_scored() -> None:
    v4 = Version(0, 4)
    engine = ScriptedEngine(
        lambda _: chunk([*ids("7"), EOS], version=v4),
        lambda _: chunk([*ids("8"), EOS], version=v4),
        lambda _: chunk(ids("7"), FinishReason.LENGTH, v4),
        version=v4,
    )
    group = run(engine)
    assert (group.key, group.prompt_id, group.start_version, group.deadline) == (KEY, "p9", 4, 6)
    assert [sample.episode for sample in group.samples] == [0, 1, 2]
    assert [sample.reward for sample in group.samples] == [1.0, 0.0, 1.0]
    assert [str(sample.status) for sample in group.samples] == ["completed", "completed", "truncated"]
    assert [request.min_version for request in engine.requests] == [v4] * 3
    assert len({request.noise_key for request in engine.requests}) == 3
    assert len({request.request_id for request in engine.requests}) == 3


@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        (dead, "engine: the engine died"),
        (lambda _: RequestError("the prompt is longer than the context"), "engine: the prompt is longer"),
        (hangs, "timeout: waited 0.3 s for episode 1/5#0/1"),
        (lambda _: chunk([], FinishReason.STOP), "workflow: ValueError: the policy chose no token"),
    ],
)
def test_a_bad_engine_call_fails_its_own_sample(bad: Any, failure: str) -> None:
    group = run(ScriptedEngine(says("7"), bad, says("8"), bad))  # that one time and again
    assert [sample.status for sample in group.samples] == [
        SampleStatus.COMPLETED,
        SampleStatus.FAILED,
        SampleStatus.COMPLETED,
    ]
    assert (group.samples[1].failure or "").startswith(failure)
    assert [sample.reward for sample in group.samples] == [1.0, None, 0.0]
    assert [sample.episode for sample in group.trainable] == [0, 2]


def test_what_the_run_aborts_is_neither_trained_nor_a_failure() -> None:
    group = run(ScriptedEngine(says("7"), lambda _: chunk([5], FinishReason.ABORT)), samples=2)
    assert [sample.status for sample in group.samples] == [SampleStatus.COMPLETED, SampleStatus.ABORTED]
    assert group.samples[1].failure is None


class Custom:
    """Runs `play` in the second episode, as a user's workflow could."""

    def __init__(self, play: Callable[[Policy], Any]) -> None:
        self._play = play
        self._calls = 0

    async def run(self, prompt: Prompt, policy: Policy) -> Any:
        self._calls += 1
        if self._calls != 2:
            return await SingleTurn().run(prompt, policy)
        result = self._play(policy)
        return await result if asyncio.iscoroutine(result) else result


async def one_trajectory(policy: Policy, **changes: Any) -> Trajectory:
    trajectory = Trajectory(policy.encode("q"))
    trajectory.add_completion(await policy.generate(trajectory.tokens))
    for name, value in changes.items():
        setattr(trajectory, name, value)
    return trajectory


def raises(error: BaseException) -> Callable[[Policy], Any]:
    async def play(policy: Policy) -> None:
        raise error

    return play


async def half_a_completion(policy: Policy) -> Trajectory:
    trajectory = Trajectory(policy.encode("q"))
    good = await policy.generate(trajectory.tokens)
    trajectory.add_completion(
        Completion(good.tokens, good.logprobs[:1], good.versions, good.branches, FinishReason.STOP)
    )
    return trajectory


class Panic(BaseException):
    """As a Rust extension raises."""


@pytest.mark.parametrize(
    ("play", "failure"),
    [
        (raises(KeyError("x")), "workflow: KeyError: 'x' (test_episodes.py"),
        (raises(TimeoutError("a library's")), "workflow: TimeoutError: a library's"),
        (raises(SystemExit(2)), "workflow: it called sys.exit(2)"),
        (raises(asyncio.CancelledError()), "workflow: it raised CancelledError"),
        (raises(Panic("a bound")), "workflow: it raised Panic: a bound (test_episodes.py"),
        (raises(GeneratorExit()), "workflow: it raised GeneratorExit"),
        (lambda policy: sys.exit(2), "workflow: it called sys.exit(2)"),
        (lambda policy: asyncio.sleep(60), "timeout: waited 0.3 s for episode"),
        (lambda policy: None, "workflow: TypeError: the workflow returned NoneType"),
        (lambda policy: [], "workflow: TypeError: the workflow returned list"),
        (lambda policy: [3], "workflow: TypeError: the workflow returned a int among"),
        (lambda policy: Trajectory([4]), "workflow: ValueError: the policy chose no token"),
        (
            lambda policy: one_trajectory(policy, metadata={"x": object()}),
            "workflow: CodecError: metadata.x is a object",
        ),
        (lambda policy: one_trajectory(policy, response=7), "workflow: TypeError: the trajectory's response is a int"),
        (lambda policy: one_trajectory(policy, reward=float("nan")), "reward_nan: the workflow returned nan"),
        (lambda policy: one_trajectory(policy, reward="1"), "reward_nan: the workflow returned '1'"),
        (lambda policy: one_trajectory(policy, status=SampleStatus.FAILED), "workflow: ValueError: the workflow set"),
        (half_a_completion, "workflow: ValueError"),
    ],
)
def test_a_misbehaving_workflow_fails_its_own_sample(play: Any, failure: str) -> None:
    group = run(ScriptedEngine(says("7")), Custom(play))
    assert [sample.is_trainable for sample in group.samples] == [True, False, True]
    assert (group.samples[1].failure or "").startswith(failure)


@pytest.mark.parametrize(
    "failure", ["reward_raised: ValueError: x", "reward_timeout: took longer", "reward_died: ended"]
)
def test_a_failed_reward_is_a_failed_sample_and_never_a_zero(failure: str) -> None:
    group = run(ScriptedEngine(says("7")), rewards=PaperRewards(RewardOutcome(None, failure)))
    for sample in group.samples:
        assert (sample.status, sample.failure, sample.reward) == (SampleStatus.FAILED, failure, None)
        assert sample.response_tokens == 2, "what was generated is kept for whoever looks into it"


def test_a_reward_of_the_workflow_is_not_asked_for_again() -> None:
    rewards = PaperRewards()
    group = run(ScriptedEngine(says("7")), Custom(lambda policy: one_trajectory(policy, reward=0.25)), rewards)
    assert [sample.reward for sample in group.samples] == [1.0, 0.25, 1.0]
    assert len(rewards.asked) == 2


def test_the_reward_gets_the_last_turn_unless_the_workflow_says_otherwise() -> None:
    rewards = PaperRewards()
    run(ScriptedEngine(says("7")), Custom(lambda policy: one_trajectory(policy, response="all of it")), rewards)
    assert sorted(rewards.asked) == ["7", "7", "all of it"]


def test_several_trajectories_are_one_episode_with_one_reward() -> None:
    async def two(policy: Policy) -> list[Trajectory]:
        return [await one_trajectory(policy), await one_trajectory(policy)]

    rewards = PaperRewards()
    group = run(ScriptedEngine(says("7")), Custom(two), rewards)
    assert [(sample.episode, sample.index, sample.reward) for sample in group.samples] == [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (1, 1, 1.0),
        (2, 0, 1.0),
    ]
    assert len(rewards.asked) == 3
    said = [{"role": "user", "content": "3+4="}, {"role": "assistant", "content": "7"}]
    assert sorted(rewards.earlier, key=len) == [[], [], [said]], (
        "of the second episode the conversation before the last one too"
    )


def test_each_episode_is_scored_as_it_ends() -> None:
    class Rewards(PaperRewards):
        async def score(
            self, response: str, row: dict[str, Any], prompt: Any, messages: Any = None, *more: Any
        ) -> RewardOutcome:
            scored.set()
            return await super().score(response, row, prompt, messages)

    class SlowSecond:
        calls = 0

        async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
            self.calls += 1
            is_second = self.calls == 2
            trajectory = await SingleTurn().run(prompt, policy)
            if is_second:
                await asyncio.wait_for(scored.wait(), 1.0)
            return trajectory

    async def play() -> Group:
        return await runner(engine, SlowSecond(), Rewards(), samples=2).run_group(KEY, PROMPT, engine.version, 2)

    scored = asyncio.Event()
    engine = ScriptedEngine(says("7"))
    assert all(sample.is_trainable for sample in asyncio.run(play()).samples)


def test_cancelling_a_group_aborts_what_it_asked_for() -> None:
    engine = ScriptedEngine(says("7"), hangs)

    async def play() -> None:
        task = asyncio.create_task(runner(engine, samples=4).run_group(KEY, PROMPT, engine.version, 2))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(play())
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests[1:])


def test_an_episode_does_not_depend_on_its_siblings_failures() -> None:
    alone, beside = ScriptedEngine(says("7")), ScriptedEngine(lambda _: RequestError("no"), says("7"))
    run(alone)
    run(beside)
    assert [request.noise_key for request in alone.requests] == [request.noise_key for request in beside.requests]


CUT = SamplingParams(max_new_tokens=16, stop_token_ids=(EOS,), top_k=3)


def with_kept(request: GenerateRequest) -> TokenChunk:
    """Each token with the one after it in the vocabulary."""
    tokens = chunk([*ids("72"), EOS])
    sets = np.stack([tokens.tokens, tokens.tokens + 1], axis=1).ravel()
    return replace(tokens, kept=KeptSets.of(sets, np.full(3, 2), 200))


class Shortens:
    """Takes a part of the completion, by `cut`."""

    def __init__(self, cut: Callable[[Completion], Completion]) -> None:
        self._cut = cut

    async def run(self, prompt: Prompt, policy: Policy) -> Trajectory:
        trajectory = Trajectory(policy.encode(prompt.content))
        trajectory.add_completion(self._cut(await policy.generate(trajectory.tokens)))
        return trajectory


def test_a_part_of_a_completion_keeps_its_kept_sets() -> None:
    group = run(ScriptedEngine(with_kept), Shortens(lambda whole: whole.first(1)), sampling=CUT, return_kept=True)
    for sample in group.samples:
        assert (sample.status, sample.reward, sample.response_tokens) == (SampleStatus.COMPLETED, 1.0, 1)
        assert sample.kept is not None
        assert sample.kept.counts.tolist() == [0] * (len(sample) - 1) + [2]


def test_tokens_of_a_cut_distribution_without_their_kept_sets_fail_their_sample() -> None:
    def forgets(whole: Completion) -> Completion:
        return Completion(whole.tokens, whole.logprobs, whole.versions, whole.branches, whole.finish_reason)

    group = run(ScriptedEngine(with_kept), Shortens(forgets), sampling=CUT, return_kept=True)
    for sample in group.samples:
        assert sample.status is SampleStatus.FAILED
        assert "3 tokens that were sampled with top_p or top_k have no kept set" in str(sample.failure)
    group = run(ScriptedEngine(with_kept), Shortens(forgets), sampling=CUT)
    assert group.samples[0].status is SampleStatus.COMPLETED, "an evaluation, which does not train on them"


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (None, "tokens of a cut distribution came without kept sets"),
        (KeptSets.of(np.array([5, 6, 7]), np.ones(3), 200), "a token is outside its kept set"),
    ],
)
def test_an_engine_that_leaves_out_kept_sets_fails_the_sample(kept: KeptSets | None, words: str) -> None:
    engine = ScriptedEngine(lambda request: replace(with_kept(request), kept=kept))
    group = run(engine, sampling=CUT, return_kept=True)
    assert words in str(group.samples[0].failure)


@pytest.mark.parametrize(("tokens", "calls"), [(9, 0), (FEW, 4)])
def test_work_on_many_tokens_is_off_the_event_loop(tokens: int, calls: int) -> None:
    """The prompt is encoded, parts of the answer are joined, the answer is decoded, and the samples are made."""
    lanes: list[str] = []

    def noted(span: Span) -> None:
        lanes.append(span.lane)

    class TwoParts(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            yield chunk(ids("1" * (tokens - 1)), None)
            yield chunk([EOS])

    prompt = Prompt("p", "3+" * 2 * tokens, {"answer": "1" * (tokens - 1)})

    async def play() -> Group:
        runtime = InlineRuntime(trace=noted)
        sampling = SamplingParams(max_new_tokens=2 * tokens, stop_token_ids=(EOS,))
        episodes = runner(TwoParts(), samples=1, services=runtime, sampling=sampling)
        try:
            return await episodes.run_group(KEY, prompt, Version(0, 0), 6)
        finally:
            await runtime.close()

    (sample,) = asyncio.run(play()).samples
    assert (sample.reward, sample.response_tokens) == (1.0, tokens)
    assert lanes == [LANE] * calls
