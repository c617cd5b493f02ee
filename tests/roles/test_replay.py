"""Replay hands over each recorded group once, under its issue, as the gate lets it through."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from role_pool import STALL_S, Scene, play

from headrace.experience.flow import Admission
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey
from headrace.roles.replay import ReplayRole
from headrace.runtime.signal import Signal

KEYS = [GroupKey(0, place, 0) for place in range(3)]


def test_each_group_is_read_journaled_under_its_issue_and_finished() -> None:
    waiting = [Admission(key, Prompt("p", "p", {}), 0, 4, issue=key.position) for key in KEYS]
    finished: list[Any] = []
    writing: list[int] = []

    def admit(number: int) -> Admission | None:
        return waiting.pop(0) if len(waiting) > (0 if flow.open else 1) else None

    flow: Any = SimpleNamespace(
        is_finished=False, open=False, changed=Signal(), admit=admit, finish=lambda *found: finished.append(found)
    )
    record: Any = SimpleNamespace(group=lambda key: Group(key, "p", 0, 4, ()))

    class Journal:
        async def write(self, group: Group) -> tuple[Any, str]:
            writing.append(len(finished))
            await scene_of[0].settle(1)
            return (group.key, group.issue), "receipt"

    scene_of: list[Scene] = []

    def make(scene: Scene) -> ReplayRole:
        scene_of.append(scene)
        journal: Any = Journal()
        return ReplayRole(scene.context, record, journal)

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(5)
        assert finished == [((KEYS[0], 0), "receipt"), ((KEYS[1], 1), "receipt")]
        assert writing == [0, 0], "together, so that they share the journal's fsync"
        flow.open = True
        await scene.settle(5)
        assert len(finished) == 2, "it looks when the flow changes"
        flow.changed.notify()
        await scene.settle(5)
        assert finished[2:] == [((KEYS[2], 2), "receipt")]
        await scene.settle(STALL_S)
        assert scene.kinds == ["waiting"]
        assert scene.events[0][1]["message"].startswith("has waited 1000.0 s for "), "it goes on"
        flow.is_finished = True
        flow.changed.notify()
        await scene.settle(1)
        assert running.done()
        assert len(finished) == 3

    play(lambda: flow, make, body)
