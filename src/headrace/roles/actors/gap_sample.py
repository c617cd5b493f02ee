"""The gap sample: now and then a few tokens are drawn only to compare the engine's log-probs with the trainer's.

Where generation runs ahead, a batch may hold no token that the trainer's present weights sampled, and what its old
tokens show is mostly how far the policy has moved since. So after each `EVERY`th version the engine is asked for a few
tokens, as for any completion, and the trainer scores them while it still has the weights that sampled them.

It is no group: the ledger does not know it, none of it is trained, and its noise is that of an epoch which no run comes
to. It holds up nobody: the engine swaps in the midst of it, the actor takes what is there before its step, and what
came too late is drawn again at the next version.
"""

from __future__ import annotations

from contextlib import suppress

from headrace.engines.completions import GenerationAborted
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError, RequestError
from headrace.experience.header import mask_of, spans_of
from headrace.experience.prompts.dataset import PromptDataset
from headrace.experience.sample import GroupKey, Sample
from headrace.models.packing import PackRow
from headrace.roles.actors.batch_stats import FreshRule
from headrace.roles.context import RoleContext
from headrace.rollout.policy import Policy, PolicySettings
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.together import together
from headrace.weights.version import Version

EVERY = 20
"""Batches."""
PROMPTS, TOKENS = 4, 8
"""Of one sample: prompts, and tokens after each at most."""
_EPOCH = 2**31 - 2
"""Its noise must not be training noise, nor evaluation's: no training epoch has this number."""


def due_after(batch: int) -> int:
    """The number of the first version of which a sample is due after one in `batch`."""
    return (batch // EVERY + 1) * EVERY


class GapSampler:
    def __init__(
        self,
        context: RoleContext,
        engines: EnginePool,
        policy: PolicySettings,
        prompts: PromptDataset,
        fresh: FreshRule,
        *,
        first: int = EVERY,
    ) -> None:
        """`policy`: as of training episodes; its `request_timeout_s` is the sample's deadline. `first`: the number of
        the version from which on a sample is due."""
        self._context = context
        self._engines = engines
        self._policy = policy
        self._prompts = prompts
        self._fresh = fresh
        self._due = first
        self._asked: Version | None = None
        """The newest version that a sample was asked of; one is asked of each at most."""
        self._drawn: list[Sample] = []
        """What the trainer has not been offered yet."""
        self._told = False
        """Whether there is an event of the misses since the last sample that came in time."""

    async def run(self) -> None:
        """Draw a sample whenever one is due, until the run is finished."""
        flow, clock = self._context.flow, self._context.runtime.clock
        while not flow.is_finished:
            version = self._engines.version
            if self._is_due(version):
                self._asked = version
                self._drawn = await self._draw(version)
            else:
                with suppress(WaitTimeout):  # nobody waits for this role
                    await flow.changed.wait(clock, self._context.stall_timeout_s, "a version to sample")

    def rows(self, batch: int) -> list[PackRow]:
        """To be scored by the weights that `batch` begins with: what was drawn, with those tokens in the mask that they
        sampled. Empty if there are none. Every sample is offered once."""
        drawn, self._drawn = self._drawn, []
        if not drawn:
            return []
        fresh = [self._fresh.tokens(batch, [*spans_of(sample)]) for sample in drawn]
        rows = [
            PackRow(
                sample.tokens,
                mask_of(spans, len(sample)),
                {"logprobs": sample.logprobs},
                sample.kept,
                experts=sample.experts,
            )
            for sample, spans in zip(drawn, fresh, strict=True)
            if spans
        ]
        if rows:
            self._due, self._told = due_after(batch), False
        else:
            self._missed(f"it came too late: batch {batch} is trained, with newer weights; another will be drawn")
        return rows

    def _is_due(self, version: Version) -> bool:
        return not self._drawn and version != self._asked and version.number >= self._due

    async def _draw(self, version: Version) -> list[Sample]:
        first = version.number // EVERY * PROMPTS
        positions = dict.fromkeys((first + place) % len(self._prompts) for place in range(PROMPTS))
        try:
            place = self._engines.newest()
        except EngineError as error:
            self._missed(str(error))
            return []
        drawn = await together(self._sample(position, version, place) for position in positions)
        return [sample for sample in drawn if sample is not None]

    async def _sample(self, position: int, version: Version, place: Place) -> Sample | None:
        """None if the engine did not serve it, which is the rollouts' business to end the run for."""
        key = GroupKey(_EPOCH, position, 0)
        prompt = self._prompts[position]
        policy = Policy(self._policy, group=key, episode=0, min_version=version, tools=prompt.tools, place=place)
        trajectory = Trajectory(policy.encode(prompt.content))
        limit = min(TOKENS, self._policy.sampling.max_new_tokens)
        try:
            trajectory.add_completion(await policy.generate(trajectory.tokens, max_new_tokens=limit))
        except (EngineError, RequestError, GenerationAborted, WaitTimeout) as error:
            self._missed(str(error))
            return None
        return trajectory.to_sample(key, 0, 0)

    def _missed(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._context.report("gap_sample_missed", {"version": str(self._asked), "message": why})
