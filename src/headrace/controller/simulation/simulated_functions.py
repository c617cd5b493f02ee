"""A simulated functions worker: its calls take time, and it dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.controller.building.functions_worker import start_functions
from headrace.controller.planning.plan import Plan
from headrace.experience.columns import FinishedGroup
from headrace.roles.columns.functions import Advantages, Columns
from headrace.roles.workers.functions import FunctionRow, FunctionsWorker
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import Workers

_WHY = "it died (a fault of the simulation)"


@dataclass(frozen=True, slots=True)
class FunctionsFaults:
    """What goes wrong with the functions worker, where the run has one."""

    deaths: tuple[float, ...] = ()
    """Seconds of the clock."""
    call_s: float = 0.3
    """That a call takes, where the worker is apart."""


async def simulated_functions(
    plan: Plan,
    runtime: Runtime,
    faults: FunctionsFaults,
    charge: Callable[[float], None],
    took: Callable[[str], None],
) -> Workers[FunctionsWorker]:
    """`charge`: for the seconds of a call. `took`: told of each death."""

    class Charged(FunctionsWorker):
        def stage(self, name: str, rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> Columns:
            charge(faults.call_s)
            return super().stage(name, rows, groups)

        def advantages(self, rows: Sequence[FunctionRow], beta: float, moves: bool) -> Advantages:
            charge(faults.call_s)
            return super().advantages(rows, beta, moves)

    kind = Charged if plan.config.functions_process else FunctionsWorker
    workers = await start_functions(plan, runtime, kind, processes=False)
    for at in faults.deaths:
        if at > runtime.clock.now():
            runtime.spawn(_die_at(at, workers, runtime, took), "death of the functions worker")
    return workers


async def _die_at(at: float, workers: Workers[Any], runtime: Runtime, took: Callable[[str], None]) -> None:
    await runtime.clock.sleep(at - runtime.clock.now())
    if not workers.lost:
        took("functions")
        await workers.kill(0, _WHY)
