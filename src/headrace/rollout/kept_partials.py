"""Where groups that a rollout function has begun, and what it notes, outlive the process that plays them."""

from __future__ import annotations

import logging

from headrace.experience.records.codec import CodecError
from headrace.rollout.held_group import HeldGroup
from headrace.rollout.partial_groups import encode_partial, restore_partial
from headrace.runtime.protocol import Services
from headrace.store.partials import Partials

_LANE = "partial rollouts"

logger = logging.getLogger(__name__)


class KeptNotes:
    def __init__(self, files: Partials, services: Services, held_out: str | None = None) -> None:
        """Of training, or of the evaluation of the set of that name."""
        self._files = files
        self._services = services
        self._held_out = held_out

    async def write(self, data: bytes) -> None:
        """In the place of those that were there; durable once this returns. Raises DiskFull, StoreError."""
        await self._services.compute(_LANE, self._files.write_notes, data, self._held_out)

    async def read(self) -> bytes | None:
        """None if there are none."""
        return await self._services.compute(_LANE, self._files.read_notes, self._held_out)


class KeptPartials:
    def __init__(self, files: Partials, services: Services, *, masks: bool) -> None:
        """`masks`: of what is too old to be trained, the tokens stay as what the policy was given; else the sample
        begins again."""
        self._files = files
        self._services = services
        self._masks = masks

    async def write(self, held: HeldGroup) -> None:
        """Durable once this returns. Raises DiskFull, StoreError; CodecError if metadata is not JSON-like."""
        await self._services.compute(_LANE, self._files.write, held.key, encode_partial(held))

    def write_now(self, held: HeldGroup) -> None:
        """The same, in the event loop: for who was cancelled. What cannot be written begins again."""
        try:
            self._files.write(held.key, encode_partial(held))
        except Exception as error:  # also what a function left in its samples
            logger.warning("group %s begins again: %s", held.key, error)

    async def restore(self, held: HeldGroup, *, floor: int) -> None:
        """Have a new group go on from what was kept of it under an earlier issue. Tokens of versions before `floor`,
        which the group's last batch may not train, are not trained on: their sample begins again, or goes on behind
        them as behind a prompt."""
        data = await self._services.compute(_LANE, self._files.read, held.key)
        if data is None:
            return
        try:
            restore_partial(held, data)
        except CodecError as error:
            logger.warning("group %s begins again: %s", held.key, error)
            return
        for sample in held.samples:
            oldest = sample.oldest
            if oldest is None or oldest >= floor:
                continue
            if self._masks:
                sample.forget_older_than(floor)
            if not self._masks or (sample.is_finished and sample.oldest is None):
                sample.restart()
