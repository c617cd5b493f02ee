"""Groups played by a function of the user's, which gets them from a buffer and adds them to it.

The function is called while groups wait, one call after another. A group belongs to the schedule and the ledger as one
that a workflow plays does: it was admitted by the gate, it runs until it is added, dropped or has failed, and whoever
has it played is told then. So neither the bound on staleness nor the ledger's law depends on what the function does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.config.errors import ConfigError
from headrace.config.train import TrainConfig
from headrace.engines.place import Place
from headrace.experience.failures import FailureKind, describe
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.plugins.named import NOTHING_GIVEN, Given, load_function
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.episode_scoring import (
    EpisodeScoring,
    Played,
    check_trajectories,
    empty_sample,
    failure_of,
)
from headrace.rollout.filters import DROPPED_AS
from headrace.rollout.held_group import HeldGroup, Whereabouts
from headrace.rollout.kept_partials import KeptNotes, KeptPartials
from headrace.rollout.policy import Policy, PolicySettings
from headrace.rollout.rollout_buffer import RolloutBuffer
from headrace.rollout.rollout_sample import RolloutSample, end_all, given
from headrace.rollout.untaken import UntakenWatch
from headrace.rollout.user_code import called
from headrace.runtime.leaving import ended_or_left
from headrace.runtime.patience import Patience
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.together import together
from headrace.store.errors import StoreError
from headrace.weights.version import Version

NOT_ADDED, BUFFER_FILTER, GIVEN_UP = "not_added", "buffer_filter", "rollout_function"
"""Reasons for which a finished group is dropped: the call ended without adding it; the filter did not take it; the
function dropped it."""
_GRACE_S = 5.0
"""In which a call that is cancelled ends."""

Function = Callable[[RolloutBuffer, int, bool], Awaitable[Any]]
BufferFilter = Callable[[Sequence[Group]], Sequence[Group]]


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """What all calls have in common."""

    name: str
    """Of the function, as the config has it."""
    evaluation: bool
    prompts_per_batch: int
    samples_per_prompt: int
    max_staleness: int
    timeout_s: float
    """A group that the function has for longer fails, and so do those that wait for longer while it has none."""
    masks_continued: bool = False
    """What was sampled under older weights than those that a group is gone on with, or under weights that the run has
    taken back since, is not trained on."""


class FunctionRunner:
    """Plays groups as `EpisodeRunner` does. Whatever the function does wrong fails the groups that it has, and nothing
    else."""

    def __init__(
        self,
        function: Function,
        settings: FunctionSettings,
        policy: PolicySettings,
        scoring: EpisodeScoring,
        *,
        buffer_filter: BufferFilter | None = None,
        partials: KeptPartials | None = None,
        notes: KeptNotes | None = None,
    ) -> None:
        """`partials`: where groups that were begun are kept, until the flow has what came of them; `notes`: where the
        buffer's metadata is. Nowhere unless given."""
        self._function = function
        self._settings = settings
        self._policy = policy
        self._scoring = scoring
        self._buffer_filter = buffer_filter
        self._partials = partials
        self._call: asyncio.Task[None] | None = None
        self._was_loaded = False
        self._untaken = UntakenWatch(settings.timeout_s, lambda: self.buffer.are_untaken, self._end_untaken)
        self.buffer = RolloutBuffer(
            clock=policy.clock,
            prompts_per_batch=settings.prompts_per_batch,
            samples_per_prompt=settings.samples_per_prompt,
            finish=self._finish,
            drop=self._give_up,
            keep=self._keep,
            taken=self._taken,
            notes=notes,
        )

    async def run_group(
        self,
        key: GroupKey,
        prompt: Prompt,
        start_version: Version,
        deadline: int,
        issue: int = 0,
        place: Place | None = None,
    ) -> Group:
        """See `EpisodeRunner.run_group`. Cancelled, it keeps what the function had begun of the group."""
        held = await self._held(key, prompt, start_version, deadline, issue, place)
        if self._partials is not None:
            await self._partials.restore(held, floor=self._floor(held))
        self.buffer.arrive(held)
        try:
            self._untaken.look()
            self._begin()
            what = f"{self._settings.name} to add group {key}"
            group = await held.patience.wait_for(held.ended, what)
        except WaitTimeout as late:
            group = self._failed(held, describe(FailureKind.TIMEOUT, str(late)))
            self._take_away(held)
        except asyncio.CancelledError:
            if self._partials is not None:
                await end_all(held.samples, self._policy.clock)
            self._take_away(held)
            if self._partials is not None and held.has_begun:
                self._partials.write_now(held)
            if self._call is not None and not self.buffer.live():
                await asyncio.wait([self._call])
            raise
        except Exception:  # no engine may serve it
            self._take_away(held)
            raise
        finally:
            held.leave()
            self.buffer.forget(held)
            self._untaken.look()
        return group

    async def _held(
        self, key: GroupKey, prompt: Prompt, version: Version, deadline: int, issue: int, place: Place | None
    ) -> HeldGroup:
        settings = self._policy
        held = HeldGroup(key, prompt, version, deadline, issue, Patience(settings.clock, self._settings.timeout_s))
        samples, parts, score = [], None, partial(self._score, prompt)
        for index in range(self._settings.samples_per_prompt):
            policy = Policy(
                settings,
                group=key,
                episode=index,
                min_version=version,
                tools=prompt.tools,
                issue=issue,
                place=None if place is None else place.of_episode(),
                still=(held.patience.still,),
            )
            if parts is None:
                parts = [given(await policy.encoded(prompt.content))]
            limit = settings.sampling.max_new_tokens
            samples.append(RolloutSample(prompt, index, policy, held, parts, limit=limit, score=score))
        held.samples = tuple(samples)
        return held

    def _floor(self, held: HeldGroup) -> int:
        """Number of the oldest version whose tokens the group's last batch may train."""
        return min(held.deadline - self._settings.max_staleness, held.start_version.number)

    def _begin(self) -> None:
        if self._call is None or self._call.done():
            self._call = asyncio.create_task(self._calls(), name="rollout function")

    async def _calls(self) -> None:
        """One call after another, while groups wait."""
        try:
            if not self._was_loaded:
                await self.buffer.load()
                self._was_loaded = True
            while self.buffer.waiting():
                await self._next_call()
        except Exception as error:  # no fault of any group: of the disk, say
            for held in self.buffer.live():
                held.break_off(error)

    async def _next_call(self) -> None:
        self.buffer.begin_call()
        error = await self._one_call()
        failing = self.buffer.taken()
        if error is None:
            await self._put_away(failing)
            if self.buffer.has_progressed():
                return
            error = RuntimeError(
                f"{self._settings.name} returned and had done nothing with any of the {len(self.buffer)} groups that "
                "wait; take them by buffer.get, have their samples generate, and add them"
            )
        for held in failing or self.buffer.live():
            held.end(self._failed(held, failure_of(error)))

    async def _one_call(self) -> Exception | None:
        """What the function failed with."""
        batch = self._policy.engines.version.number
        self._untaken.begin()
        try:
            call = called(self._function, self.buffer, batch, self._settings.evaluation)
            added = await ended_or_left(call, _GRACE_S, self._leave)
            if added is not None:
                await self.buffer.add(added)
        except StoreError:
            raise
        except Exception as error:
            return error
        finally:
            self._untaken.end()
        return None

    def _end_untaken(self) -> None:
        """The call lets groups wait, and has none: it hangs. They end, and so does the call."""
        what = f"{self._settings.name} to take any of the {len(self.buffer)} groups that wait (buffer.get)"
        failure = describe(FailureKind.TIMEOUT, str(WaitTimeout(what, self._settings.timeout_s)))
        for held in self.buffer.waiting():
            held.end(self._failed(held, failure))
        self._end_call()

    def _leave(self) -> None:
        for held in self.buffer.taken():
            for sample in held.samples:
                sample.policy.leave()

    def _take_away(self, held: HeldGroup) -> None:
        """The group ends, though the function has not added it. A call that has no group left is ended with it, also
        where others wait: it may hang, and the next call begins only once this one has ended."""
        had = held.where is not Whereabouts.WAITS
        held.leave()
        self.buffer.forget(held)
        if not self.buffer.taken() and (had or not self.buffer.waiting()):
            self._end_call()

    def _end_call(self) -> None:
        """Cancel it; it is left if it does not end in time. Then the next call has the groups that wait."""
        call = self._call
        if call is None or call.done() or call.cancelling():
            return
        self._untaken.end()
        self.buffer = self.buffer.handed_on()
        call.add_done_callback(lambda _: self._begin() if self.buffer.waiting() else None)
        call.cancel()

    def _taken(self, held: HeldGroup) -> None:
        self._untaken.taken()
        if self._settings.masks_continued:
            engines = self._policy.engines
            for sample in held.samples:
                if not sample.is_finished:
                    sample.forget_older_than(engines.version.number, engines.line.holds)

    async def _keep(self, held: HeldGroup) -> None:
        self._untaken.look()
        if self._partials is not None and held.has_begun:
            await self._partials.write(held)

    async def _put_away(self, taken: Sequence[HeldGroup]) -> None:
        """The call ended with these: those that are finished it did not want, the others wait."""
        await self._give_up([held for held in taken if held.is_finished], reason=NOT_ADDED)
        left = [held for held in taken if held.where is Whereabouts.TAKEN]
        await end_all((sample for held in left for sample in held.samples), self._policy.clock)
        for held in left:
            try:
                await self.buffer.put_back([held])
            except StoreError:
                raise
            except Exception as error:  # what the function left in its samples cannot be written
                held.end(self._failed(held, failure_of(error)))

    async def _give_up(self, groups: Sequence[HeldGroup], *, reason: str = GIVEN_UP) -> None:
        for held in groups:
            if held.is_finished:
                self._hand_over(held, _dropped(await self._group(held), reason))
            else:
                held.cut()
                samples = (empty_sample(held.key, each.index, SampleStatus.ABORTED, None) for each in held.samples)
                self._hand_over(held, self._made(held, tuple(samples)))

    async def _finish(self, groups: Sequence[HeldGroup]) -> None:
        """See `Finish`."""
        made = await together((self._group(held) for held in groups), (f"group {held.key}" for held in groups))
        chosen = list(made)
        if self._buffer_filter is not None:
            chosen = _checked(self._buffer_filter(list(made)), made)
        for held, group in zip(groups, made, strict=True):
            is_taken = any(group is each for each in chosen)
            self._hand_over(held, group if is_taken else _dropped(group, BUFFER_FILTER))

    @staticmethod
    def _hand_over(held: HeldGroup, group: Group) -> None:
        if held.is_live:
            held.end(group)

    async def _group(self, held: HeldGroup) -> Group:
        """Scored, as far as the function has not done it."""
        played = list(
            await together(
                (self._played(held, sample) for sample in held.samples),
                (f"the reward of {held.key}/{sample.index}" for sample in held.samples),
            )
        )
        judged = await self._scoring.judge_together(played, held.prompt)
        return self._made(held, await self._scoring.samples(held.key, judged))

    async def _played(self, held: HeldGroup, sample: RolloutSample) -> Played | list[Sample]:
        if sample.status is SampleStatus.FAILED:
            failure = sample.failure or describe(FailureKind.WORKFLOW, f"{self._settings.name} says that it failed")
            return [empty_sample(held.key, sample.index, SampleStatus.FAILED, failure)]
        try:
            trajectory = sample.trajectory()
            outcome = sample.outcome
            if outcome is None or outcome.value != sample.reward:
                trajectory.reward, outcome = sample.reward, None
            check_trajectories([trajectory])
            if outcome is None:
                return await self._scoring.score([trajectory], held.prompt)
            return Played([trajectory], [outcome], [True], sample.response, trajectory.messages)
        except Exception as error:
            return [empty_sample(held.key, sample.index, SampleStatus.FAILED, failure_of(error))]

    async def _score(self, prompt: Prompt, sample: RolloutSample) -> RewardOutcome:
        try:
            return (await self._scoring.score([sample.trajectory()], prompt)).outcomes[-1]
        except Exception as error:  # tokens that do not decode
            return RewardOutcome(None, failure_of(error))

    def _failed(self, held: HeldGroup, failure: str) -> Group:
        held.fail(failure)
        samples = (empty_sample(held.key, each.index, SampleStatus.FAILED, failure) for each in held.samples)
        return self._made(held, tuple(samples))

    @staticmethod
    def _made(held: HeldGroup, samples: tuple[Sample, ...]) -> Group:
        return Group(held.key, held.prompt.prompt_id, held.start_version.number, held.deadline, samples, held.issue)


@dataclass(frozen=True, slots=True)
class RolloutFunctions:
    """Those of a config; a workflow plays where there is none."""

    training: Function | None = None
    evaluation: Function | None = None
    buffer_filter: BufferFilter | None = None

    @classmethod
    def of(cls, config: TrainConfig, objects: Given = NOTHING_GIVEN) -> RolloutFunctions:
        """Raises ConfigError."""
        rollout, evaluation = config.rollout, config.evaluation
        return cls(
            None if rollout.function is None else load_rollout_function(rollout.function, "rollout.function", objects),
            None
            if evaluation.function is None
            else load_rollout_function(evaluation.function, "evaluation.function", objects),
            None if rollout.buffer_filter is None else load_buffer_filter(rollout.buffer_filter, objects),
        )


WORKFLOWS_ALONE = RolloutFunctions()


def load_rollout_function(spec: str, key: str, objects: Given = NOTHING_GIVEN) -> Function:
    """The function that `key` of the config names. Raises ConfigError."""
    if ":" not in spec:
        raise ConfigError(f"{key} is {spec!r}; write path.py:function or module:function")
    function = load_function(spec, key, ("buffer", "batch", "evaluation"), awaited=True, given=objects)
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"{key} is {spec!r}, which is not async; write async def")
    return function


def load_buffer_filter(spec: str, objects: Given = NOTHING_GIVEN) -> BufferFilter:
    """The function that `rollout.buffer_filter` names. Raises ConfigError."""
    if ":" not in spec:
        raise ConfigError(f"rollout.buffer_filter is {spec!r}; write path.py:function or module:function")
    return load_function(spec, "rollout.buffer_filter", ("groups",), given=objects)


def _checked(chosen: Any, groups: Sequence[Group]) -> list[Group]:
    """Raises TypeError unless these are some of the groups."""
    if not isinstance(chosen, Sequence) or any(all(one is not group for group in groups) for one in chosen):
        raise TypeError("rollout.buffer_filter has to return a list of those of its groups that are to be trained")
    return list(chosen)


def _dropped(group: Group, reason: str) -> Group:
    """The group, so that it is dropped for that."""
    first, *others = group.samples
    metadata = {**first.metadata, DROPPED_AS: reason}
    return replace(group, samples=(replace(first, metadata=metadata), *others))
