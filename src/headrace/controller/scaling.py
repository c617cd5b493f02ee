"""More engines and rollout workers, or fewer, while a run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config import TrainConfig
from headrace.config.errors import ConfigError
from headrace.controller.building.rollout_workers import RolloutHands
from headrace.engines.member import Member
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.errors import HeadraceError
from headrace.observe.events import EventSink
from headrace.runtime.breakable import Breakable, BrokenOff
from headrace.weights.plane import WeightReceiver

MOST = 64
_KEYS = ("engines", "rollout_workers")
_TAKEN_OUT = "it was taken out of the run"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Coming:
    """One more, while it is made."""

    name: str
    """Of the key by which it was asked for."""
    number: int
    """Of them there are with it."""
    making: Breakable[None]


class Scaling:
    def __init__(
        self,
        config: TrainConfig,
        pool: EnginePool,
        receiver: WeightReceiver,
        hands: RolloutHands | None,
        event: EventSink,
        *,
        ahead: int,
    ) -> None:
        """`receiver`: of the policy's weights. `ahead`: most groups that run or wait for a batch; it stays."""
        self._config = config
        self._pool = pool
        self._receiver = receiver
        self._hands = hands
        self._event = event
        self._ahead = ahead
        self._one = asyncio.Lock()
        self._wanted: dict[str, int] = {}
        """Of each, as it was asked for last."""
        self._coming: _Coming | None = None

    async def answer(self, asked: Mapping[str, Any], say: Say) -> None:
        """`{"scale": {"engines": N, "rollout_workers": N}}`, one or both. Raises ConfigError, also where one
        does not start or end, or another number is asked for meanwhile; what was done by then stays. One that is being
        made, and by what is asked for now is not to be there, is made no further."""
        wanted = asked.get("scale")
        if set(asked) != {"scale"} or not isinstance(wanted, dict) or not wanted or set(wanted) - set(_KEYS):
            raise ConfigError(f"a run can be asked to scale {' and '.join(_KEYS)}, and was asked {dict(asked)}")
        for name, number in wanted.items():
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST:
                raise ConfigError(f"{name} is {number!r}; give a number from 1 to {MOST}")
        self._check(wanted)
        self._wanted |= wanted
        if (coming := self._coming) is not None and coming.number > self._wanted[coming.name]:
            coming.making.break_off()
        async with self._one:
            if "engines" in wanted:
                await self._to(wanted["engines"], "engines", self._engine_count, self._add, self._remove, say)
                say(self._what_binds())
            if "rollout_workers" in wanted and self._hands is not None:
                seats, spec = self._hands.seats, self._hands.spec
                await self._to(
                    wanted["rollout_workers"],
                    "rollout_workers",
                    lambda: seats.count,
                    lambda: seats.add(spec),
                    seats.leave,
                    say,
                )

    def _check(self, wanted: Mapping[str, int]) -> None:
        """Before anything begins."""
        if "engines" in wanted and self._config.engine.colocated:
            raise ConfigError(
                "the number of engines stays: they have their devices by turns with the trainer (engine.colocated)"
            )
        if "engines" in wanted and self._pool.hires is None:
            raise ConfigError(
                "the number of engines stays: they are in the run's own process, in which no model is loaded while "
                "others compute, or run elsewhere (engine.url); start the run with engine.process: true, or servers "
                "that it launches"
            )
        if "rollout_workers" in wanted and self._hands is None:
            raise ConfigError(
                "the run has no rollout worker: its rollouts are played in its own process; start it with "
                "rollout.workers: 1 or more"
            )

        if wanted.get("rollout_workers", 1) > 1 and self._config.rollout.function is not None:
            raise ConfigError("rollout.function plays all groups from one buffer, in one rollout worker; it stays one")

    async def _to(
        self,
        wanted: int,
        name: str,
        count: Callable[[], int],
        add: Callable[[], Coroutine[Any, Any, None]],
        remove: Callable[[], Awaitable[None]],
        say: Say,
    ) -> None:
        what = name.replace("_", " ")
        if count() == wanted:
            say(f"{what}: {wanted}, as before")
        while count() != wanted:
            if self._wanted[name] != wanted:
                raise ConfigError(f"{what}: {count()}, and not {wanted}: {self._wanted[name]} were asked for meanwhile")
            try:
                await (self._added(name, count() + 1, add()) if count() < wanted else remove())
            except BrokenOff:
                continue
            except HeadraceError as error:
                raise ConfigError(f"{what}: {count()}, and not {wanted}: {error}") from error
            self._event("scaled", {"what": what, "count": count()})
            say(f"{what}: {count()}")

    async def _added(self, name: str, number: int, adding: Coroutine[Any, Any, None]) -> None:
        """Raises BrokenOff, and what `adding` raises."""
        self._coming = _Coming(name, number, Breakable(adding))
        try:
            await self._coming.making.result()
        finally:
            self._coming = None

    def _there(self) -> list[Member]:
        """Those of its own: lent ones are as many as before."""
        return [member for member in self._pool.own if member.state is not EngineState.GONE]

    def _engine_count(self) -> int:
        return len(self._there())

    async def _add(self) -> None:
        """It serves once it holds the newest version, and all who ask engines know it."""
        pool, hires = self._pool, self._pool.hires
        assert hires is not None
        engine, handle = await hires.hire()
        member = pool.add(engine, handle)
        try:
            await pool.welcome(member, self._receiver, self._tell)
        except BaseException as error:
            await self._end(member, _TAKEN_OUT if isinstance(error, asyncio.CancelledError) else "it did not start")
            raise

    async def _remove(self) -> None:
        """The last one that serves nobody now; else the last that no evaluation holds, which would have to begin
        again."""
        there = self._there()
        free = [member for member in there if not member.pins]
        down = [member for member in free if not member.is_up]
        await self._end((down or free or there)[-1], _TAKEN_OUT)

    async def _end(self, member: Member, why: str) -> None:
        assert self._pool.hires is not None
        await self._pool.dismiss(member, why)
        await self._tell()
        await self._pool.hires.release(member.index)

    async def _tell(self) -> None:
        if self._hands is not None:
            gone = [member.index for member in self._pool.members if member.state is EngineState.GONE]
            await self._hands.seats.engines_changed(self._pool.handles, gone)

    def _what_binds(self) -> str:
        slots = sum(member.engine.slots for member in self._there() if member.is_up)
        samples = self._ahead * self._config.rollout.samples_per_prompt
        stays = f"async.ahead stays at {self._ahead} groups, {samples} samples"
        if samples < slots:
            return f"{stays}, of {slots} that the engines decode at once: that binds; --resume with a larger one"
        return f"{stays}; the engines decode {slots} at once"
