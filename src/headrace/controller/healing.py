"""Healing a trainer or critic that has lost a rank whose state another replica holds whole.

What is left stays as it is, or, between the steps of a batch that has several, is again what that began with, and
gives its state to what is made anew in the place of the rest. The batch at hand is trained again from its beginning,
or, where all of its steps were made, seen through. The run does not go back: no branch, no version twice, and rollouts,
engines and evaluation know nothing of it. Where no node has room for what was lost, the others go on without it, and
take it in once one has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.controller.building.wiring import Parts
from headrace.runtime.protocol import Runtime
from headrace.runtime.supervision import FIRST_PAUSE_S
from headrace.weights.version import Version


class Healing:
    def __init__(self, parts: Parts, runtime: Runtime) -> None:
        self._parts = parts
        self._runtime = runtime
        self._renewed: list[str] = []
        """Workers that were lost since roles were at work: another loss may have come before they were again."""

    def forget(self) -> None:
        """The run goes back instead: what was lost is nothing to it."""
        self._renewed.clear()

    async def after(self, kind: str, told: Mapping[str, str]) -> bool:
        """Whether what was lost of this kind, `trainer` or `critic`, is there again, and roles may begin again; none of
        those that lease rows may be at work. `told` of the loss in the record. False where no replica is left, and
        where one of two models has stepped and remembers nothing of before. Raises WorkerLost."""
        parts = self._parts
        groups, clock = parts.models.groups, self._runtime.clock
        began = clock.now()
        if not next(group.has_replicas for group in groups if group.name == kind):
            return False
        await parts.turns.train()
        for group in groups:
            if not await group.is_whole(stepped=parts.actor.has_stepped):
                return False
        parts.recorder.event("trainer_lost", {**told})
        await clock.sleep(FIRST_PAUSE_S)
        await self._heal(began)
        return True

    async def take_in(self) -> None:
        """Those that were made again take part from now on: see `replica_return`. As `after`. Raises WorkerLost."""
        began = self._runtime.clock.now()
        await self._parts.turns.train()
        await self._heal(began)

    async def _heal(self, began: float) -> None:
        parts, groups, clock = self._parts, self._parts.models.groups, self._runtime.clock
        for group in groups:
            # One that comes back would load its model on a device that engines have just then.
            without = not parts.turns.shares_devices
            self._renewed += await group.heal(stepped=parts.actor.has_stepped, without=without)
        renewed = [*dict.fromkeys(self._renewed)]
        parts.flow.train_again(renewed)
        await parts.actor.go_on()
        if not parts.actor.has_stepped:
            await parts.turns.generate()
        if parts.critic is not None:
            parts.critic.begin_again()
        self.forget()
        version, seconds = Version(parts.branch, parts.flow.batch), clock.now() - began
        parts.recorder.event(
            "trainer_healed", {"message": self._message(renewed), "version": str(version), "seconds": round(seconds, 3)}
        )

    def _message(self, renewed: Sequence[str]) -> str:
        absent = {name: why for group in self._parts.models.groups for name, why in group.absent.items()}
        made, said = [name for name in renewed if name not in absent], []
        if made:
            said.append(f"{', '.join(made)} made anew, with the state of another replica")
        if absent:
            may_come = any(group.may_come_back for group in self._parts.models.groups)
            until = ", until a node has room" if may_come else ""
            said.append(f"the others go on without {', '.join(absent)}{until}: {next(iter(absent.values()))}")
        return "; ".join(said)
