"""The evaluator: scores held-out prompts now and then, beside training. Outside the ledger's law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.engines.protocol import Engine
from headrace.roles.context import RoleContext
from headrace.rollout.evaluation import Evaluation
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.version import Version

NAME = "evaluator"


class EvaluatorRole:
    def __init__(
        self,
        context: RoleContext,
        engine: Engine,
        evaluation: Evaluation,
        record: Callable[[Version, dict[str, Any]], None],
        *,
        every: int | None,
    ) -> None:
        """`record` is given the version and its result."""
        self._context = context
        self._engine = engine
        self._evaluation = evaluation
        self._record = record
        self._every = every

    async def run(self, last: int) -> None:
        """Evaluate whenever the engine's version has passed another multiple of `every`, beginning after `last`."""
        if self._every is None:
            return
        flow = self._context.flow
        while not flow.is_finished:
            if self._engine.version.number // self._every > last // self._every:
                last = self._engine.version.number
                await self.evaluate()
            else:
                await self._context.changed(NAME, "a version to evaluate")

    async def evaluate(self) -> None:
        """Evaluate the present version, and record it. One that takes too long is reported and left out."""
        try:
            with self._context.activity.evaluation():
                result = await self._evaluation.run()
            self._record(*result)
        except WaitTimeout as late:
            self._context.report("evaluation_given_up", {"message": str(late)})
