"""What follows the loss of the trainer or the critic: it is healed, or the run goes back to the last commit within its
process: they are made anew, and rollouts go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.controller.building.rollout_workers import RolloutHands
from headrace.controller.building.wiring import Parts, evaluated
from headrace.controller.healing import Healing
from headrace.controller.planning.plan import Plan
from headrace.experience.taken_back import read_back
from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import Runtime
from headrace.runtime.supervision import TRAINER, Measure, Restarts, after_failure
from headrace.runtime.workers import WorkerLost
from headrace.store import Commit, Restored, RunStore
from headrace.weights.version import Version

LANE = "going back"
TRAINERS = ("trainer", "critic")
"""Of workers: kinds."""

Load = Callable[[Path | None], Awaitable[None]]
"""Brings models to what the checkpoint in this folder holds; None: to version 0, those that are as they were made."""


def is_of_trainer(error: BaseException) -> bool:
    """Whether the trainer or the critic was lost."""
    return isinstance(error, WorkerLost) and kind_of_lost(error) in TRAINERS


class StoppedGoingBack(Exception):
    """The run was told to stop while it went back to its last commit, from which it is to be resumed: trainers may be
    half made by then."""


def kind_of_lost(lost: WorkerLost) -> str:
    """Of the worker, as `trainer`."""
    return lost.worker.partition("/")[0]


class TooOften(WorkerLost):
    """The loss with which the run is to stop."""

    def __init__(self, lost: WorkerLost, restarts: Restarts) -> None:
        often = (
            f"{restarts.most} were lost within {restarts.window_s:g} s, or in a row without a batch between "
            "(runtime.restarts), after all had gone on from the last commit for the same reason; mend that, and "
            "--resume the run"
        )
        super().__init__(lost.rank, f"{lost.reason}; {often}", worker=lost.worker)


class GoingBack:
    """What follows the loss of the trainer or the critic, as `runtime/supervision.py` says. Where another replica has
    its state, it is healed, unless that comes too often. Else both go back to the last commit; after too many losses
    without a commit between, or where no node has room in time, the run stops."""

    def __init__(
        self, plan: Plan, parts: Parts, store: RunStore, runtime: Runtime, load: Load, hands: RolloutHands | None = None
    ) -> None:
        self._plan = plan
        self._parts = parts
        self._store = store
        self._runtime = runtime
        self._load = load
        self._hands = hands
        self._failures = 0
        """In a row, without a commit between."""
        self._at = parts.checkpointer.committed
        """The commit when one was lost last."""
        self.is_midway = False
        """Models may have the commit's state while the rest of the run does not know it yet: none can be healed."""
        self._healing = Healing(parts, runtime)
        often = plan.config.runtime.restarts
        self._restarts = Restarts(often.most, often.window_s)

    async def after(self, lost: WorkerLost, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Return once roles may begin again; none of those that lease rows may be at work. Raises the loss where the
        run is to stop, as where there was no room for one that was to be made anew. `is_stopping`: the run was told to:
        then it does not go back, and StoppedGoingBack is raised."""
        while True:
            try:
                return await self._mend(lost, is_stopping)
            except WorkerLost as again:
                waited = isinstance(again.__cause__, NoRoom)  # the next would wait as long again
                if waited or not is_of_trainer(again) or again is lost or isinstance(again, TooOften):
                    raise
                lost = again

    async def take_in(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """As `after`, where nothing was lost: replicas that were made again take part from now on."""
        try:
            await self._healing.take_in()
        except WorkerLost as lost:
            if not is_of_trainer(lost):
                raise
            await self.after(lost, is_stopping)

    async def _mend(self, lost: WorkerLost, is_stopping: Callable[[], bool]) -> None:
        parts, clock = self._parts, self._runtime.clock
        await parts.checkpointer.forget()
        committed = parts.checkpointer.committed
        if self._at != committed:
            self._failures, self._at = 0, committed
        often = self._restarts.after(kind_of_lost(lost), clock.now(), batches=parts.flow.batch, committed=committed)
        if often is Measure.STOP:
            raise TooOften(lost, self._restarts)
        left = Version(parts.branch, parts.flow.batch)
        told = {"message": str(lost), "version": str(left)}
        may_heal = often is Measure.RESTART and not self.is_midway
        if may_heal and await self._healing.after(kind_of_lost(lost), told):
            return
        self._failures += 1
        then = after_failure(TRAINER, self._failures)
        commit = self._store.checkpoints.newest()
        if then.measure is not Measure.FROM_COMMIT or not self._may_go_back(lost, commit):
            raise lost
        if is_stopping():
            raise StoppedGoingBack
        await parts.turns.train()
        parts.recorder.event("trainer_lost", told)
        self.is_midway = True
        self._healing.forget()
        parts.actor.forget_step()
        await clock.sleep(then.pause_s)
        await self._renew(lost, commit, every=often is Measure.FROM_COMMIT)
        # Nothing is trained meanwhile, so these are all.
        rows = self._store.ledger.trained_since(commit.number)
        refs = parts.context.refs
        trained, damaged = await self._runtime.compute(LANE, read_back, rows, self._store.journal.read, refs)
        restored = parts.flow.go_back(commit, trained)
        late = dict.fromkeys(parts.flow.left(), "it would be late for the batch that it is due by")
        for key, why in (damaged | late).items():
            message = f"group {key} is generated again: {why}"
            parts.recorder.event("reissued", {"prompt": str(key), "message": message})
        await self._tell(restored)
        self.is_midway = False
        version = Version(restored.branch, restored.number)
        # Before anything is waited for: another loss now is healed, perhaps, and then nobody comes back here.
        if parts.critic is not None:
            parts.critic.begin_again()
        for scorer in parts.scorers:
            scorer.begin_again()
        again = left.number > version.number
        message = f"the run goes on from {version}" + (": what was trained since is trained again" if again else "")
        parts.recorder.event("went_back", {"version": str(version), "from": str(left), "message": message})
        await parts.actor.begin_again()
        await parts.turns.generate()

    def _may_go_back(self, lost: WorkerLost, commit: Commit) -> bool:
        """Nothing is known of a reference that was refreshed since version 0, which has no files."""
        models, refreshed = self._parts.models, self._parts.refreshes.have_begun
        names = self._names() if commit.path is None else [kind_of_lost(lost)]
        can = all(name in models.renew for name in names)
        return can and self._plan.replay is None and not (commit.path is None and refreshed)

    def _names(self) -> tuple[str, ...]:
        return TRAINERS if self._parts.models.critic is not None else TRAINERS[:1]

    async def _renew(self, lost: WorkerLost, commit: Commit, *, every: bool) -> None:
        """`every`: the one that is still there, too, if it can be."""
        models = self._parts.models
        for name in self._names():
            if commit.path is None or name == kind_of_lost(lost) or (every and name in models.renew):
                await models.renew[name]()
        await self._runtime.compute(LANE, commit.verify, self._store.files)
        await self._load(commit.path)

    async def _tell(self, restored: Restored) -> None:
        """Whoever knows of versions. Nothing is awaited before all of this process know."""
        parts, store = self._parts, self._store
        begun, last_kept = Version(restored.branch, restored.number), store.checkpoints.lineage()
        parts.lineage.go_back(begun, last_kept)
        parts.recorder.go_back(restored.branch)
        parts.checkpointer.go_back(restored)
        parts.models.kl.go_back(restored.state)
        if parts.best is not None:
            parts.best.go_back(restored.number)
        if parts.evaluator is not None:
            parts.evaluator.go_back(restored.number, evaluated(store))
        await parts.rollouts.go_back(restored.number)
        if self._hands is not None:
            await self._hands.seats.go_back(begun, last_kept)
