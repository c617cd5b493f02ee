"""The evaluator when the run goes back: what was taken back is not recorded, and is evaluated again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engines.pool import EnginePool
from headrace.engines.simulated import SimulatedEngine
from headrace.observe.waits import WaitMeter
from headrace.roles.context import RoleContext
from headrace.roles.evaluator import EvaluatorRole
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.version import Lineage, Version

TAKES_S = 100.0


class House:
    def __init__(self, runtime: VirtualRuntime, engine: SimulatedEngine) -> None:
        self.runtime = runtime
        self.line = Lineage(0, {})
        self.pool = EnginePool.of([engine], runtime.clock)
        self.pool.line = self.line
        self.recorded: list[tuple[Version, float]] = []
        self.begun: list[Version] = []
        flow: Any = SimpleNamespace(is_finished=False, batch=9, changed=Signal())
        table: Any = None
        context = RoleContext(runtime, flow, table, WaitMeter(runtime.clock.now), lambda kind, data: None, 1e6)
        self.role = EvaluatorRole(
            context,
            self.pool,
            [self],  # type: ignore[list-item]
            lambda version, result: self.recorded.append((version, runtime.clock.now())),
            recorded={"test": 3},
            begins=lambda version, name: self.begun.append(version),
        )
        self.pool.changed.listen(flow.changed.notify)

    held_out = SimpleNamespace(name="test", every=2)

    async def run(self, version: Version, place: object) -> dict[str, Any]:
        await self.runtime.clock.sleep(TAKES_S)
        return {}


@pytest.mark.parametrize(("commit", "stands"), [(5, False), (7, True)])
def test_an_evaluation_under_way_ends_without_a_record_if_its_version_is_taken_back(commit: int, stands: bool) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engine = SimulatedEngine(runtime, version=Version(0, 7))
        await engine.start()
        house = House(runtime, engine)
        evaluating = runtime.spawn(house.role.run(), "evaluator")
        await runtime.clock.sleep(10.0)
        house.line.go_back(Version(1, commit), {0: commit})
        house.role.go_back(commit, {"test": 3})
        await runtime.clock.sleep(1.0)
        assert bool(engine._pins) is stands, "nothing holds the engine at weights that are no more"
        await runtime.clock.sleep(TAKES_S)
        assert not evaluating.done()
        assert [version for version, _ in house.recorded] == ([Version(0, 7)] if stands else [])
        assert house.role._last == {"test": 7 if stands else 3}
        evaluating.cancel()
        await engine.stop()

    run_virtually(main)
