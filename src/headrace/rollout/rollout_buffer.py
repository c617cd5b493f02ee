"""The buffer of a rollout function: where it gets groups from, and where it adds what it has played.

Every group that was admitted is in exactly one place: it waits, the function has it, or it has ended. A group that
waits may have been begun: then it goes on from the tokens that it has, each with its log-prob and version, and is due
when it was. `get` never waits for a start: with the gate shut, what is there is all that there is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from typing import Any

from headrace.experience.records.codec import check_metadata
from headrace.rollout.held_group import HeldGroup, Whereabouts
from headrace.rollout.kept_partials import KeptNotes
from headrace.rollout.rollout_sample import RolloutSample, end_all
from headrace.runtime.protocol import Clock

_LINGER_S = 0.02
"""So long `get` waits for one group more to come, where it has fewer than it was asked for: starts come one by one."""

PlayedGroup = Sequence[RolloutSample]
Finish = Callable[[Sequence[HeldGroup]], Awaitable[None]]
"""Has finished groups scored, chosen among, and ended."""
Keep = Callable[[HeldGroup], Awaitable[None]]
"""Has a group that was put back outlive this process."""


class RolloutBuffer:
    def __init__(
        self,
        *,
        clock: Clock,
        prompts_per_batch: int,
        samples_per_prompt: int,
        finish: Finish,
        drop: Finish,
        keep: Keep,
        taken: Callable[[HeldGroup], None],
        notes: KeptNotes | None = None,
    ) -> None:
        """`finish` and `drop` are given groups that the function added, or dropped; `taken` one that `get` gives.
        `notes`: where `metadata` is kept."""
        self.prompts_per_batch = prompts_per_batch
        """Groups that a batch is made of."""
        self.samples_per_prompt = samples_per_prompt
        self.metadata: dict[str, Any] = {}
        """Yours: JSON-like values, which `save` keeps."""
        self._clock = clock
        self._finish = finish
        self._drop = drop
        self._keep = keep
        self._take = taken
        self._notes = notes
        self._held: dict[int, HeldGroup] = {}
        """All that have not ended, by arrival."""
        self._arrivals = 0
        self._seen: dict[int, tuple[int, ...]] = {}
        """Of each, by arrival, its progress when the call began, or when it came after that."""
        self._has_ended = False
        """Whether one has since, and is forgotten."""

    def __len__(self) -> int:
        """Groups that wait."""
        return len(self.waiting())

    async def get(self, count: int) -> list[list[RolloutSample]]:
        """At most so many groups that are to be played, those that are due first before others: each a list of
        `samples_per_prompt` samples. Fewer, or none, where the schedule lets no more start: go on with what there is.
        """
        if type(count) is not int or count < 1:
            raise ValueError(f"buffer.get was called with {count!r}; ask for a number of groups, at least 1")
        arrivals = -1
        while len(self.waiting()) < count and arrivals != self._arrivals:
            arrivals = self._arrivals
            await self._clock.sleep(_LINGER_S)
        found = self.waiting()[:count]
        for held in found:
            held.take()
            self._take(held)
        return [list(held.samples) for held in found]

    async def add(self, groups: Iterable[PlayedGroup]) -> None:
        """Hand over groups that `get` gave. Those of which every sample is finished are scored, where they are not yet,
        and go on to be trained. The others wait, and `get` gives them again with what they have; what they have then
        outlives the process."""
        held = [self._of(group) for group in groups]
        finished = [each for each in held if each.is_finished and self._has(each)]
        await self.put_back([each for each in held if self._has(each) and not each.is_finished])
        if finished:
            await self._finish(finished)

    async def drop(self, groups: Iterable[PlayedGroup]) -> None:
        """Give up groups that `get` gave: finished ones are not trained, of others the prompt is tried again later."""
        await self._drop([each for each in map(self._of, groups) if self._has(each)])

    async def abort(self) -> None:
        """End every completion that is under way: its sample has status ABORTED, and the tokens so far."""
        await end_all((sample for held in self.taken() for sample in held.samples), self._clock)
        await self._clock.sleep(0.0)  # whoever waits for them hears of it

    async def save(self) -> None:
        """Have `metadata` outlive this process, and what there is of all groups that were begun. (What is put back
        does at once.)"""
        check_metadata(self.metadata)
        if self._notes is not None:
            await self._notes.write(json.dumps(self.metadata).encode())
        for held in self.live():
            if held.has_begun and held.is_live:
                await self._keep(held)

    async def load(self) -> None:
        """Have `metadata` be what `save` kept, in this process or an earlier one; nothing changes where it kept none.
        Done once before the first call."""
        data = None if self._notes is None else await self._notes.read()
        if data is not None:
            found = json.loads(data)
            check_metadata(found)
            self.metadata = found

    async def put_back(self, groups: Sequence[HeldGroup]) -> None:
        """Have these wait again, with all that was sampled for them."""
        await end_all((sample for held in groups for sample in held.samples), self._clock)
        for held in groups:
            if held.where is Whereabouts.TAKEN:
                held.put_back()
                await self._keep(held)

    def handed_on(self) -> RolloutBuffer:
        """A buffer with all groups, for later calls. This one has none any more: a call that was cancelled, and goes
        on, is given nothing and changes nothing."""
        successor = copy(self)
        self._held = {}
        return successor

    def arrive(self, held: HeldGroup) -> None:
        """A group was admitted."""
        held.arrival = self._arrivals
        self._arrivals += 1
        self._held[held.arrival] = held
        self._seen[held.arrival] = held.progress

    def forget(self, held: HeldGroup) -> None:
        """It has ended."""
        self._held.pop(held.arrival, None)
        if self._seen.pop(held.arrival, None) is not None:
            self._has_ended = True

    def begin_call(self) -> None:
        """See `has_progressed`."""
        self._seen = {held.arrival: held.progress for held in self.live()}
        self._has_ended = False

    def has_progressed(self) -> bool:
        """Whether a group has ended or grown since the call began, one that came after that as well."""
        seen = ((self._held[arrival], progress) for arrival, progress in self._seen.items())
        return self._has_ended or any(not held.is_live or held.progress != progress for held, progress in seen)

    def live(self) -> list[HeldGroup]:
        """All that have not ended."""
        return [held for held in self._held.values() if held.is_live]

    def taken(self) -> list[HeldGroup]:
        """What the function has."""
        return [held for held in self._held.values() if held.where is Whereabouts.TAKEN]

    @property
    def are_untaken(self) -> bool:
        """Whether groups wait, and the function has none."""
        places = {held.where for held in self._held.values()}
        return Whereabouts.WAITS in places and Whereabouts.TAKEN not in places

    def waiting(self) -> list[HeldGroup]:
        """What `get` gives next, in order."""
        waiting = [held for held in self._held.values() if held.where is Whereabouts.WAITS]
        return sorted(waiting, key=lambda held: (held.deadline, not held.has_begun, held.arrival))

    def _has(self, held: HeldGroup) -> bool:
        return held.is_live and held.arrival in self._held

    def _of(self, group: PlayedGroup) -> HeldGroup:
        """Raises TypeError, ValueError for what `get` did not give."""
        samples = list(group)
        if not samples or not all(isinstance(sample, RolloutSample) for sample in samples):
            kinds = ", ".join(sorted({type(sample).__name__ for sample in samples})) or "nothing"
            raise TypeError(f"a group is a list of samples that buffer.get gave, and this one has {kinds}")
        held = samples[0].holder
        if not isinstance(held, HeldGroup) or {id(each) for each in samples} != {id(each) for each in held.samples}:
            raise ValueError(
                f"a group of {len(samples)} samples is not one that buffer.get gave: add all {self.samples_per_prompt} "
                "samples of a prompt together, and no others"
            )
        if held.where is Whereabouts.WAITS:
            raise ValueError(f"group {held.key} was added already: it waits, and buffer.get gives it again")
        return held
