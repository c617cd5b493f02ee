"""Bugs that look like code, to be planted one at a time: the fault matrix must find each, but for those of which whole
runs show nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engines import admission, chunk_check, completions, pool
from headrace.engines.admission import AnyLineage
from headrace.engines.member import Member
from headrace.engines.pool_sleep import PoolSleep
from headrace.experience.flow import Flow
from headrace.experience.schedule import Schedule
from headrace.roles.actors.critic import CriticRole
from headrace.rollout.episodes import EpisodeRunner
from headrace.store.ledger import Ledger
from headrace.training.simulated import SavedState, SimulatedTrainer

Plant = Callable[[pytest.MonkeyPatch], None]


def earliest_deadline_take(patch: pytest.MonkeyPatch) -> None:
    """Any ready group enters the batch, the one of earliest deadline first."""

    def first(self: Schedule) -> Any:
        found = self._candidates.first()
        return None if found is None else self._live[found.key]

    patch.setattr(Schedule, "_next", first)


def no_issue_numbers(patch: pytest.MonkeyPatch) -> None:
    """An attempt that is given out again has the number that it had: what comes of a lost worker is taken for it."""
    reissue = Ledger.reissue

    def again(self: Ledger, key: Any, **more: Any) -> int:
        reissue(self, key, **more)
        self._database.execute(
            "UPDATE attempts SET issue = 0 WHERE epoch = ? AND position = ? AND attempt = ?", tuple(key)
        )
        return 0

    patch.setattr(Ledger, "reissue", again)
    patch.setattr(Ledger, "withdraw", lambda self, key: None)


def tokens_of_an_earlier_issue(patch: pytest.MonkeyPatch) -> None:
    """An attempt that is given out again keeps the episodes that had ended aboard the lost worker."""
    episode = EpisodeRunner._episode

    async def kept(self: EpisodeRunner, key: Any, number: int, *more: Any) -> Any:
        # By the clock, which is the run's: a runner ends with its worker.
        ended, name = self._clock.__dict__.setdefault("_ended", {}), (key, number)
        if name not in ended:
            ended[name] = await episode(self, key, number, *more)
        return ended[name]

    patch.setattr(EpisodeRunner, "_episode", kept)


def critic_steps_on_seal(patch: pytest.MonkeyPatch) -> None:
    """The critic steps as soon as it has seen all rows of the batch, and does not wait for the actor."""
    accumulate = CriticRole._accumulate

    class Stepped:
        """The trainer, which has made its step already."""

        def __init__(self, role: CriticRole, report: Any) -> None:
            self._role, self._trainer, self._report = role, role._trainer, report

        def __getattr__(self, name: str) -> Any:
            return getattr(self._trainer, name)

        async def step(self) -> Any:
            self._role._trainer = self._trainer
            return self._report

    async def stepped(self: CriticRole, batch: int) -> bool:
        there = await accumulate(self, batch)
        if there and self._whole is None:
            made: Any = Stepped(self, await self._ask(self._trainer.step()))
            self._trainer = made
        return there

    patch.setattr(CriticRole, "_accumulate", stepped)


def a_lost_group_keeps_its_deadline_on_any_engine(patch: pytest.MonkeyPatch) -> None:
    """The re-issue rule without its condition: an engine that is older may take the group over."""
    patch.setattr(Flow, "may_keep_place", lambda self, key, version: True)

    def kept(self: Schedule, key: Any, version: int | None) -> int | None:
        group = self._of(key)
        if version is None:
            self._leave(group)
            return None
        return group.deadline

    patch.setattr(Schedule, "reissue", kept)


def an_engine_of_a_left_branch_admits(patch: pytest.MonkeyPatch) -> None:
    """Where a group begins, nobody asks whether the version is of the run's line: after a return to (1, 5), an engine
    that holds (0, 7) admits groups for 7."""
    candidates = admission.candidates
    patch.setattr(admission, "candidates", lambda engines, line, is_open: candidates(engines, AnyLineage(), is_open))


def an_engine_of_a_left_branch_serves(patch: pytest.MonkeyPatch) -> None:
    """As above, where a request is sent: the number alone counts."""
    route = pool.route

    def anywhere(engines: Any, line: Any, minimum: Any, **more: Any) -> int | None:
        return route(engines, AnyLineage(), minimum, **more)

    patch.setattr(pool, "route", anywhere)


def a_floor_that_was_taken_back_stands(patch: pytest.MonkeyPatch) -> None:
    """What asked for (0, 7) before the run went back to (1, 5) waits until the new branch has come to 7."""

    def of_then(pool: Any, asked: Any) -> int | None:
        return None if asked.minimum is None else asked.minimum.number

    patch.setattr(completions, "_floor", of_then)


def tokens_of_any_version_are_taken(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what an engine says that it sampled a token with."""
    patch.setattr(chunk_check, "_is_new_enough", lambda line, chunk, minimum: True)


def a_group_newer_than_the_return_keeps_its_deadline(patch: pytest.MonkeyPatch) -> None:
    """(0, 7) comes before (1, 5), so a group that began on it is taken for one that began before the return: it keeps
    its place and its deadline, and the oldest token that it may have from then on is of (1, 5)."""
    back = Schedule.go_back

    def none_is_newer(self: Schedule, batch: int, trained: Any, ended: Any = ()) -> Any:
        return back(self, batch, trained, list(self._live))

    patch.setattr(Schedule, "go_back", none_is_newer)


def an_engine_comes_back_in_the_trainers_turn(patch: pytest.MonkeyPatch) -> None:
    """Whoever follows the weights minds no turn: as soon as a version can be received, or an engine has died or sleeps,
    it has the newest."""

    def never(self: Any) -> bool:
        return False

    patch.setattr(PoolSleep, "is_on", property(never, lambda self, value: None), raising=False)


def a_checkpoint_is_written_of_the_weights_at_hand(patch: pytest.MonkeyPatch) -> None:
    """What is saved is no copy: it is of whatever version the trainer has when it is written."""
    patch.setattr(SimulatedTrainer, "saved", lambda self, *, copies: SavedState(self._state, self._files, self._write))


def a_lent_engine_comes_back_in_the_trainers_time(patch: pytest.MonkeyPatch) -> None:
    """Whoever follows the weights wakes it as soon as it sleeps, or has died."""
    patch.setattr(Member, "away", property(lambda self: False, lambda self, value: None), raising=False)


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        earliest_deadline_take,
        no_issue_numbers,
        tokens_of_an_earlier_issue,
        critic_steps_on_seal,
        a_lost_group_keeps_its_deadline_on_any_engine,
        an_engine_of_a_left_branch_admits,
        a_group_newer_than_the_return_keeps_its_deadline,
        an_engine_comes_back_in_the_trainers_turn,
        a_checkpoint_is_written_of_the_weights_at_hand,
        a_lent_engine_comes_back_in_the_trainers_time,
    )
}
"""Those that whole runs find (test_fault_matrix.py)."""
HIDDEN: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        an_engine_of_a_left_branch_serves,
        a_floor_that_was_taken_back_stands,
        tokens_of_any_version_are_taken,
    )
}
"""Those that whole runs do not show, since what is left of the checks on versions bears with them: an engine that lacks
a version takes it soon, says truly what it sampled with, and a request that waits too long is made again. A test of
the line that is broken finds each (engines/test_left_branches.py)."""
