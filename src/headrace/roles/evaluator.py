"""The evaluator: scores held-out sets now and then, beside training. Outside the ledger's law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.engines.protocol import Engine
from headrace.roles.context import RoleContext
from headrace.rollout.evaluation import Evaluation
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.version import Version

NAME = "evaluator"


class EvaluatorRole:
    """Sets that are due at once are evaluated one after another, all with one version, which the engine is pinned to:
    meanwhile it takes no newer one, and what it generates for training is as much staler."""

    def __init__(
        self,
        context: RoleContext,
        engine: Engine,
        sets: Sequence[Evaluation],
        record: Callable[[Version, dict[str, Any]], None],
        *,
        recorded: Mapping[str, int],
        begins: Callable[[Version, str], None] | None = None,
        ended: Callable[[Version, str, dict[str, Any] | None], None] | None = None,
    ) -> None:
        """`record` is given the version and the result of a set. `recorded`: by set, the newest version of whose
        evaluation there is a record: one that a crash cut off is made again. `begins` and `ended` are told of each set,
        by its name; the latter after `record`, with no result if the evaluation was given up."""
        self._begins = begins or (lambda version, name: None)
        self._ended = ended or (lambda version, name, result: None)
        self._context = context
        self._engine = engine
        self._sets = tuple(sets)
        self._record = record
        self._last = dict(recorded)
        """By set, the last version that was evaluated, or whose evaluation was given up."""

    async def before(self) -> None:
        """Evaluate the sets that never were."""
        await self.evaluate([each for each in self._sets if each.held_out.name not in self._last])

    async def after(self) -> None:
        """Evaluate the sets that were not with the present version."""
        number = self._engine.version.number
        await self.evaluate([each for each in self._sets if self._last.get(each.held_out.name) != number])

    async def run(self) -> None:
        """Evaluate each set whenever the engine's version has passed another multiple of its `every`."""
        if all(each.held_out.every is None for each in self._sets):
            return
        flow = self._context.flow
        while not flow.is_finished:
            if due := [each for each in self._sets if self._is_due(each)]:
                await self.evaluate(due)
            else:
                await self._context.changed(NAME, "a version to evaluate")

    async def evaluate(self, due: Sequence[Evaluation]) -> None:
        """Evaluate the present version on these sets, and record each. One that takes too long is reported and left
        out."""
        if not due:
            return
        pinned = self._engine.pin()
        try:
            with self._context.activity.evaluation():
                for each in due:
                    self._begins(pinned.version, each.held_out.name)
                for each in due:
                    self._last[each.held_out.name] = pinned.version.number
                    await self._evaluate(each, pinned.version)
        finally:
            pinned.release()

    async def _evaluate(self, each: Evaluation, version: Version) -> None:
        clock = self._context.runtime.clock
        began = clock.now()
        try:
            result = await each.run(version)
        except WaitTimeout as late:
            self._context.report("evaluation_given_up", {"message": str(late)})
            self._ended(version, each.held_out.name, None)
            return
        spent = {"seconds": clock.now() - began, "versions_behind": self._context.flow.batch - version.number}
        self._record(version, {**result, **spent})
        self._ended(version, each.held_out.name, result)

    def _is_due(self, each: Evaluation) -> bool:
        every, last = each.held_out.every, self._last.get(each.held_out.name, 0)
        return every is not None and self._engine.version.number // every > last // every
