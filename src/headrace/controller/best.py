"""Keeps the checkpoint whose evaluation is the best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.config.evaluation import BestBy
from headrace.observe.events import EventSink
from headrace.observe.spent import EVALUATION
from headrace.roles.context import RoleContext
from headrace.store.checkpoints import Checkpoints
from headrace.weights.version import Version

NAME = "checkpoint"


@dataclass(slots=True)
class BestCheckpoint:
    """A version can be the best only if there is a checkpoint of it, and its evaluation ends batches later. So there is
    one of every version that the set is evaluated with (`is_due`), the trainer goes on from it only once its evaluation
    has begun (`begun`), since the engine would else pass over that version, and no checkpoint goes while it is being
    evaluated."""

    checkpoints: Checkpoints
    by: BestBy
    context: RoleContext
    report: EventSink
    _begun: int = -1
    _values: dict[int, float] = field(default_factory=dict)
    """By version, of evaluations that ended before their checkpoint was written."""
    _is_let_go: bool = False

    def is_due(self, number: int) -> bool:
        """Whether version `number` is to have a checkpoint, since it will be evaluated."""
        return number % self.by.every == 0

    async def begun(self, number: int) -> None:
        """Until the evaluation of version `number` has begun, if it is to have one."""
        if not self.is_due(number) or self.context.flow.is_finished:
            return
        with self.context.activity.training(EVALUATION):
            while self._begun < number and not self._is_let_go:
                await self.context.changed(NAME, f"the evaluation of version {number} to begin")

    def let_go(self) -> None:
        """The run is told to stop: nobody waits any more."""
        self._is_let_go = True
        self.context.flow.changed.notify()

    def go_back(self, number: int) -> None:
        """The run went back to version `number`: later ones will be made, and evaluated, again."""
        self._is_let_go = False
        self._begun = min(self._begun, number)
        self._values = {one: value for one, value in self._values.items() if one <= number}
        self.checkpoints.release_after(number)

    def begins(self, version: Version, name: str) -> None:
        """The set `name` is being evaluated with `version`."""
        if name == self.by.name:
            self._begun = version.number
            self.checkpoints.hold(version.number)
            self.context.flow.changed.notify()

    def ended(self, version: Version, name: str, result: dict[str, Any] | None) -> None:
        """`result`: None where the evaluation was given up."""
        if name != self.by.name:
            return
        value = None if result is None else result["metrics"][self.by.metric]["value"]
        if value is not None and self.checkpoints.has(version.number):
            self._compare(version.number, value)
        elif value is not None:
            self._values[version.number] = value
            return
        self.checkpoints.release(version.number)

    def committed(self, number: int) -> None:
        """There is a checkpoint of version `number` now."""
        if (value := self._values.pop(number, None)) is not None:
            self._compare(number, value)
            self.checkpoints.release(number)

    def _compare(self, number: int, value: float) -> None:
        best, sign = self.checkpoints.best, 1 if self.by.highest else -1
        if best is not None and best.metric == self.by.key and sign * value <= sign * best.value:
            return
        self.checkpoints.keep_as_best(number, metric=self.by.key, value=value)
        self.report("best", {"version": f"v{number}", "metric": self.by.key, "value": value})
