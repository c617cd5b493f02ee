"""What a run gets from outside: where it runs and keeps its record, and who computes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Protocol

from headrace.config.track import TrackerSection
from headrace.controller.building.functions_worker import start_functions
from headrace.controller.building.models import Models, load_models
from headrace.controller.building.processors import own_threads
from headrace.controller.building.reward_pools import RewardPools
from headrace.controller.building.rollout_workers import RolloutHands, start_rollout_workers
from headrace.controller.building.threads import inline_runtime, takes_turns
from headrace.controller.building.wiring import Parts
from headrace.controller.building.workers_apart import WorkersApart, workers_apart
from headrace.controller.control_socket import Answer, listening
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import lanes_device
from headrace.controller.supervise import rewards
from headrace.controller.tracking import tracking
from headrace.controller.watching import watchdog
from headrace.observe.events import EventSink
from headrace.rewards.judge import Ask
from headrace.roles.workers.functions import FunctionsWorker
from headrace.runtime.collection import rare_collections
from headrace.runtime.ground import Ground
from headrace.runtime.inline import Span
from headrace.runtime.protocol import Clock, Runtime
from headrace.runtime.workers import Workers
from headrace.store import RunStore
from headrace.store.media.files import LOCAL, Files
from headrace.weights.version import Lineage


class Outside(Protocol):
    """All of it that is not the controller's own: what has threads, processes, models or a disk."""

    @property
    def files(self) -> Files: ...

    def runtime(self, plan: Plan, folder: Path, trace: Callable[[Span], None] | None) -> Runtime:
        """A new one. `folder` of the run. `trace`: given the calls of its lanes."""

    async def models(self, plan: Plan, runtime: Runtime, folder: Path) -> Models:
        """Loaded; the engines not started."""

    @property
    def ground(self) -> Ground | None:
        """What the workers of the runtime stand on; None where that lasts as long as this process."""

    def rewards(self, plan: Plan, folder: Path, runtime: Runtime, ask: Ask) -> AbstractAsyncContextManager[RewardPools]:
        """What scores, while it is entered. `ask`: of the judges."""

    async def rollout_workers(
        self,
        plan: Plan,
        folder: Path,
        runtime: Runtime,
        store: RunStore,
        models: Models,
        rewards: RewardPools,
        lineage: Lineage,
    ) -> RolloutHands | None:
        """See `start_rollout_workers`."""

    async def functions(self, plan: Plan, runtime: Runtime) -> Workers[FunctionsWorker]:
        """See `start_functions`."""

    def began(self, parts: Parts) -> None:
        """The run is built, and its roles begin."""

    def tracking(
        self,
        sections: Sequence[TrackerSection],
        folder: Path,
        clock: Clock,
        event: EventSink,
        seen: Callable[[], bool],
    ) -> AbstractAsyncContextManager[None]:
        """See `tracking`."""

    def watchdog(self, plan: Plan, owners: Mapping[str, str], record: Path) -> AbstractAsyncContextManager[object]:
        """See `watchdog`."""

    def control(self, folder: Path, clock: Clock, answer: Answer) -> AbstractAsyncContextManager[None]:
        """While it is entered, the run can be told something: see `listening`."""

    def at_work(self) -> AbstractContextManager[None]:
        """Entered once all that lasts as long as the run is there."""


class ThisMachine:
    """Threads, processes and files of this machine, and the models that the config names."""

    files: Files = LOCAL

    def __init__(self) -> None:
        self._apart: WorkersApart | None = None

    def runtime(self, plan: Plan, folder: Path, trace: Callable[[Span], None] | None) -> Runtime:
        config = plan.config
        self._apart = workers_apart(config, folder, plan.rollout_workers, plan.shared)
        return inline_runtime(
            own_threads(config),
            device=lanes_device(config),
            turns=config.runtime.turns or takes_turns(config),
            trace=trace,
            apart=self._apart,
            limits=config.runtime.stuck.limits,
        )

    async def models(self, plan: Plan, runtime: Runtime, folder: Path) -> Models:
        in_memory = None if self._apart is None else self._apart.make_folder
        return await load_models(plan, runtime, folder, in_memory)

    @property
    def ground(self) -> Ground | None:
        return self._apart if isinstance(self._apart, Ground) else None

    def rewards(self, plan: Plan, folder: Path, runtime: Runtime, ask: Ask) -> AbstractAsyncContextManager[RewardPools]:
        return rewards(plan, folder, runtime, ask)

    async def rollout_workers(
        self,
        plan: Plan,
        folder: Path,
        runtime: Runtime,
        store: RunStore,
        models: Models,
        rewards: RewardPools,
        lineage: Lineage,
    ) -> RolloutHands | None:
        engines, judges = models.engines, models.judges
        return await start_rollout_workers(plan, folder, runtime, store, engines, judges, rewards, lineage)

    async def functions(self, plan: Plan, runtime: Runtime) -> Workers[FunctionsWorker]:
        return await start_functions(plan, runtime)

    def began(self, parts: Parts) -> None:
        pass

    def tracking(
        self,
        sections: Sequence[TrackerSection],
        folder: Path,
        clock: Clock,
        event: EventSink,
        seen: Callable[[], bool],
    ) -> AbstractAsyncContextManager[None]:
        return tracking(sections, folder, clock, event, seen)

    def watchdog(self, plan: Plan, owners: Mapping[str, str], record: Path) -> AbstractAsyncContextManager[object]:
        return watchdog(plan, owners, record=record)

    def control(self, folder: Path, clock: Clock, answer: Answer) -> AbstractAsyncContextManager[None]:
        return listening(folder, clock, answer)

    def at_work(self) -> AbstractContextManager[None]:
        return rare_collections()
