"""What goes wrong with trainers and leases in a simulated run, what took effect, and a watch over its law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.controller.building.wiring import Parts
from headrace.engines.protocol import Tag
from headrace.experience.schedule import ScheduleError
from headrace.roles.actors import actor, critic
from headrace.runtime.workers import WorkerLost
from headrace.store.errors import LawBroken

CONSUMERS = {"actor": actor.NAME, "critic": critic.NAME}


_WORKERS = {"actor": "trainer", "critic": "critic"}
"""Kinds of the workers that train."""


@dataclass(frozen=True, slots=True)
class TrainingFaults:
    """Each by the trainer, `actor` or `critic`, and the micro-batch of the run, counted over all its lives, that it
    comes after."""

    deaths: tuple[tuple[str, int], ...] = ()
    deaths_in_steps: tuple[tuple[str, int], ...] = ()
    """By the optimiser step, counted alike: made, and lost with it."""
    deaths_in_sleep: tuple[tuple[str, int], ...] = ()
    """By the time that it is put to sleep, where engines and trainer take turns."""
    deaths_in_writes: tuple[tuple[str, int], ...] = ()
    """By the time that something of a checkpoint is written, beside what it does then."""
    lost_leases: tuple[tuple[str, int], ...] = ()
    """One that the role holds ends behind its back; where it has stepped on the batch already, in the next one."""


class Hazards:
    """Of a run, in all of its lives."""

    def __init__(self, faults: TrainingFaults) -> None:
        self.took: Counter[str] = Counter()
        """Which faults took effect, and how often."""
        self.broken: list[str] = []
        """What did not hold at some moment."""
        self._deaths = {
            "pass": list(faults.deaths),
            "step": list(faults.deaths_in_steps),
            "sleep": list(faults.deaths_in_sleep),
            "write": list(faults.deaths_in_writes),
        }
        self._leases = list(faults.lost_leases)
        self._told: dict[str, Counter[str]] = {word: Counter() for word in self._deaths}
        """By word, how often each trainer has told it."""
        self._stepped: dict[str, int] = {}
        self._parts: Parts | None = None
        self._is_on: Callable[[], bool] = bool

    def began(self, parts: Parts, is_on: Callable[[], bool]) -> None:
        """`is_on`: the machine. Where it goes off, what is half done is not looked at."""
        self._parts, self._stepped, self._is_on = parts, {}, is_on
        parts.flow.changed.listen(self._look)

    def ended(self) -> None:
        self._parts = None

    def trainer(self, name: str, watch: Callable[[str, object], None]) -> Callable[[str, object], None]:
        """What a trainer tells; `watch` is told the rest of it."""

        def hear(word: str, what: object) -> None:
            if word == "step":
                self._stepped[name] = -1 if self._parts is None else self._parts.flow.batch
            if word != "pass":
                watch(word, what)
            if word not in self._deaths:
                return
            if word != "write":
                self._look_at_turns(name)
            told = self._told[word]
            told[name] += 1
            if word == "pass":
                self._lose_lease(name)
            deaths = self._deaths[word]
            if (death := next((one for one in deaths if one[0] == name and told[name] >= one[1]), None)) is not None:
                deaths.remove(death)
                self.took[f"{name} died"] += 1
                self._stepped.clear()
                raise WorkerLost(0, "it died (a fault of the simulation)", worker=f"{_WORKERS[name]}/0")

        return hear

    def _look_at_turns(self, name: str) -> None:
        """Where engines and those that train take turns, none of them is awake while one trains; nor is one that is
        lent."""
        parts = self._parts
        if parts is None or not parts.turns.shares_devices or not self._is_on():
            return
        pool = parts.models.engines
        members = [each for each in pool.lent or pool.members if each.is_up and each.engine.failure is None]
        if awake := [member.name for member in members if len(member.engine.asleep) < len(Tag)]:
            self.broken.append(f"{', '.join(awake)} awake while the {name} trains")

    def _lose_lease(self, name: str) -> None:
        parts = self._parts
        due = next((one for one in self._leases if one[0] == name and self._told["pass"][name] >= one[1]), None)
        if parts is None or due is None or self._stepped.get(name) == parts.flow.batch:
            return
        table = parts.context.table
        if held := table.held(CONSUMERS[name]):
            self._leases.remove(due)
            self.took[f"{name} lost a lease"] += 1
            table.give_back(held[0])

    def _look(self) -> None:
        if self._parts is None or not self._is_on():
            return
        try:
            self._parts.flow.check()
        except (LawBroken, ScheduleError) as error:
            self.broken.append(f"{type(error).__name__}: {error}")
