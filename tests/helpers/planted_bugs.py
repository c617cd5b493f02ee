"""Bugs that look like code, to be planted in a simulated run: the fault matrix must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engines import admission, completions, pool
from headrace.experience.flow import Flow
from headrace.experience.schedule import Schedule
from headrace.roles.actors.critic import CriticRole
from headrace.rollout.episodes import EpisodeRunner
from headrace.store.ledger import Ledger

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
        ended, name = self.__dict__.setdefault("_ended", {}), (key, number)
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


def versions_compared_as_tuples(patch: pytest.MonkeyPatch) -> None:
    """Wherever an engine is chosen or a chunk is looked at, (branch, number) is compared, and nobody asks whether the
    version is of the run's line: after a return to (1, 5), an engine that holds (0, 7) admits groups for 7."""

    def candidates(engines: Any, line: Any, is_open: Any) -> Any:
        return [(each, each.version) for each in engines if each.serves and is_open(each.version.number)]

    def route(
        engines: Any, line: Any, minimum: Any, *, excluded: Any = (), only: Any = (), home: Any = None
    ) -> int | None:
        able = [
            each.index
            for each in sorted(engines, key=lambda each: (each.index != home, each.outstanding, each.index))
            if each.serves and each.index not in excluded and (not only or each.index in only)
            if minimum is None or tuple(each.version) >= tuple(minimum)
        ]
        return able[0] if able else None

    patch.setattr(admission, "candidates", candidates)
    patch.setattr(pool, "route", route)
    patch.setattr(completions, "_floor", lambda pool, asked: asked.minimum)
    patch.setattr(completions, "_is_new_enough", lambda pool, chunk, minimum: True)


def a_group_newer_than_the_return_keeps_its_deadline(patch: pytest.MonkeyPatch) -> None:
    """(0, 7) comes before (1, 5), so a group that began on it is taken for one that began before the return: it keeps
    its place and its deadline, and the oldest token that it may have from then on is of (1, 5)."""
    back = Schedule.go_back

    def none_is_newer(self: Schedule, batch: int, trained: Any, ended: Any = ()) -> Any:
        return back(self, batch, trained, list(self._live))

    patch.setattr(Schedule, "go_back", none_is_newer)


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        earliest_deadline_take,
        no_issue_numbers,
        tokens_of_an_earlier_issue,
        critic_steps_on_seal,
        a_lost_group_keeps_its_deadline_on_any_engine,
        versions_compared_as_tuples,
        a_group_newer_than_the_return_keeps_its_deadline,
    )
}
