"""A group that was admitted, from then until a rollout function has added it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

from headrace.engines.completions import NotServed
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.rollout.rollout_sample import RolloutSample
from headrace.runtime.patience import Patience
from headrace.weights.version import Version


class Whereabouts(Enum):
    WAITS = "waits"
    """In the buffer: `get` gives it."""
    TAKEN = "taken"
    """The function has it."""
    ENDED = "ended"


class HeldGroup:
    """Its clock stands still while it waits."""

    def __init__(
        self, key: GroupKey, prompt: Prompt, start_version: Version, deadline: int, issue: int, patience: Patience
    ) -> None:
        self.key = key
        self.prompt = prompt
        self.start_version = start_version
        self.deadline = deadline
        """The last batch that may train all of its tokens."""
        self.issue = issue
        self.patience = patience
        self.samples: Sequence[RolloutSample] = ()
        self.arrival = 0
        """Its place among all that came."""
        self.ended: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.where = Whereabouts.WAITS
        patience.still.begin()

    @property
    def is_live(self) -> bool:
        """See `Holder`."""
        return self.where is not Whereabouts.ENDED

    @property
    def is_finished(self) -> bool:
        return all(sample.is_finished for sample in self.samples)

    @property
    def progress(self) -> tuple[int, ...]:
        """Of each sample its tokens, and whether it is finished: what changes while it is played."""
        return tuple(2 * sample.response_length + sample.is_finished for sample in self.samples)

    @property
    def has_begun(self) -> bool:
        """Whether there is a token that the policy chose."""
        return any(part.chosen and len(part.tokens) for sample in self.samples for part in sample.parts)

    def take(self) -> None:
        """The function has it now."""
        self.where = Whereabouts.TAKEN
        self.patience.still.end()

    def put_back(self) -> None:
        """It waits again, with what it has."""
        self.cut()
        self.where = Whereabouts.WAITS
        self.patience.still.begin()

    def end(self, group: Group) -> None:
        """It is played."""
        self.leave()
        if not self.ended.done():
            self.ended.set_result(group)

    def leave(self) -> None:
        """Nothing comes of it any more."""
        if self.where is Whereabouts.WAITS:
            self.patience.still.end()
        self.where = Whereabouts.ENDED
        self.cut()

    def cut(self) -> None:
        """Whatever is under way ends, with the tokens that it has."""
        for sample in self.samples:
            sample.cut()

    def not_served(self, error: NotServed) -> None:
        """See `Holder`."""
        self.break_off(error)

    def break_off(self, error: Exception) -> None:
        """It ends by what is no fault of its own."""
        self.leave()
        if not self.ended.done():
            self.ended.set_exception(error)

    def fail(self, failure: str) -> None:
        """All of its samples."""
        self.cut()
        for sample in self.samples:
            sample.status, sample.failure = SampleStatus.FAILED, failure
