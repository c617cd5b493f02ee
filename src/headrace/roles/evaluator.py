"""The evaluator: scores held-out sets now and then, beside training. Outside the ledger's law."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace.engines.completions import NotServed
from headrace.engines.pinned_engines import PinnedEngines
from headrace.engines.pool import EnginePool
from headrace.roles.context import RoleContext
from headrace.rollout.evaluation import Evaluation
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.version import Version

NAME = "evaluator"


class EvaluatorRole:
    """Sets that are due at once are evaluated one after another, all with one version, which an engine (or
    `evaluation.engines`) is pinned to: meanwhile it takes no newer one, and what it generates for training is as much
    staler. If it dies, or is taken out of the run, they begin again with the newest version, once."""

    def __init__(
        self,
        context: RoleContext,
        engines: EnginePool,
        sets: Sequence[Evaluation],
        record: Callable[[Version, dict[str, Any]], None],
        *,
        recorded: Mapping[str, int],
        count: int = 1,
        begins: Callable[[Version, str], None] | None = None,
        ended: Callable[[Version, str, dict[str, Any] | None], None] | None = None,
    ) -> None:
        """`record` is given the version and the result of a set. `recorded`: by set, the newest version of whose
        evaluation there is a record: one that a crash cut off is made again. `begins` and `ended` are told of each set,
        by its name; the latter after `record`, with no result if the evaluation was given up."""
        self._begins = begins or (lambda version, name: None)
        self._ended = ended or (lambda version, name, result: None)
        self._context = context
        self._engines = engines
        self._count = count
        self._sets = tuple(sets)
        self._record = record
        self._last = dict(recorded)
        """By set, the last version that was evaluated, or whose evaluation was given up."""

    async def before(self) -> None:
        """Evaluate the sets that never were."""
        await self.evaluate([each for each in self._sets if each.held_out.name not in self._last])

    async def after(self) -> None:
        """Evaluate the sets that were not with the present version."""
        number = self._engines.version.number
        await self.evaluate([each for each in self._sets if self._last.get(each.held_out.name) != number])

    def go_back(self, number: int, recorded: Mapping[str, int]) -> None:
        """The run went back to version `number`: what was evaluated of later ones counts no more, and if one is being
        evaluated, that ends without a record. `recorded`: as at the beginning."""
        for name, last in list(self._last.items()):
            if last > number:
                del self._last[name]
                if name in recorded:
                    self._last[name] = recorded[name]
        self._engines.changed.notify()

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
        """Evaluate the present version on these sets, and record each. One that takes too long, or whose engines were
        lost twice, is reported and left out."""
        if not due:
            return
        left = await self._evaluate_all(due)
        if left:
            names = ", ".join(each.held_out.name for each in left)
            self._context.report("evaluation_again", {"message": f"the engine that held the weights was lost: {names}"})
            for each in await self._evaluate_all(left):
                version = Version(self._engines.version.branch, self._last[each.held_out.name])
                self._give_up(each, version, "the engine that held the weights was lost again")

    async def _evaluate_all(self, due: Sequence[Evaluation]) -> list[Evaluation]:
        """With one version. Returns those whose engines were lost."""
        with self._context.activity.evaluation():
            pinned = await self._pin()
            try:
                for each in due:
                    self._begins(pinned.version, each.held_out.name)
                for place, each in enumerate(due):
                    if self._is_taken_back(pinned.version):
                        break
                    self._last[each.held_out.name] = pinned.version.number
                    if not await self._evaluate(each, pinned):
                        for later in due[place:]:
                            self._last[later.held_out.name] = pinned.version.number
                        return list(due[place:])
                return []
            finally:
                pinned.release()

    async def _pin(self) -> PinnedEngines:
        """Waits for an engine that serves a version of the line; how long, the engine watch decides."""
        context = self._context
        while not self._engines.serves_line:
            with suppress(WaitTimeout):
                await self._engines.changed.wait(context.runtime.clock, context.stall_timeout_s, "an engine to pin")
        return self._engines.pin(self._count)

    async def _evaluate(self, each: Evaluation, pinned: PinnedEngines) -> bool:
        """False if the engines were lost under it."""
        context, version = self._context, pinned.version
        clock = context.runtime.clock
        began = clock.now()
        running = context.runtime.spawn(each.run(version, pinned.place), f"evaluation {each.held_out.name}")
        lost = context.runtime.spawn(self._lost(pinned), "engines of the evaluation")
        try:
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
            if self._is_taken_back(version):
                return True
            if not running.done() or pinned.is_lost:
                return False
            result = running.result()
        except (WaitTimeout, NotServed) as late:
            self._give_up(each, version, str(late))
            return True
        finally:
            for task in (running, lost):
                task.cancel()
            await asyncio.gather(running, lost, return_exceptions=True)
        spent = {"seconds": clock.now() - began, "versions_behind": context.flow.batch - version.number}
        self._record(version, {**result, **spent})
        self._ended(version, each.held_out.name, result)
        return True

    async def _lost(self, pinned: PinnedEngines) -> None:
        context = self._context
        while not (pinned.is_lost or self._is_taken_back(pinned.version)):
            with suppress(WaitTimeout):
                await self._engines.changed.wait(context.runtime.clock, context.stall_timeout_s, "the evaluation")

    def _is_taken_back(self, version: Version) -> bool:
        return not self._engines.line.holds(version)

    def _give_up(self, each: Evaluation, version: Version, why: str) -> None:
        self._context.report("evaluation_given_up", {"message": why})
        self._ended(version, each.held_out.name, None)

    def _is_due(self, each: Evaluation) -> bool:
        every, last = each.held_out.every, self._last.get(each.held_out.name, 0)
        return every is not None and self._engines.version.number // every > last // every
