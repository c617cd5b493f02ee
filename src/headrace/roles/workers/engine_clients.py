"""The engines as a worker sees them: a pool of its own of engines that are elsewhere, and that come back by
themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.engines.member import Member
from headrace.engines.pool import EnginePool, Spread
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import Engine, EngineError
from headrace.engines.remote import RemoteEngine
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.supervision import pause_after
from headrace.runtime.workers import Handle, Host
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import Lineage

_LONGEST_PAUSE_S = 2.0


class EngineClients:
    """Requests are routed by the pool, with what is known here: whoever assigned a group chose its engine, and is asked
    for nothing more. An engine that died is gone back to once it serves again; who brings it back is not here."""

    def __init__(
        self, handles: Sequence[Handle], host: Host, *, line: Lineage | None, return_deadline_s: float, spread: Spread
    ) -> None:
        self._host = host
        self._handles = tuple(handles)
        self.pool = EnginePool(
            [self._remote(place) for place in range(len(handles))],
            host.clock,
            revive=self._back,
            return_deadline_s=return_deadline_s,
            spread=spread,
        )
        if line is not None:
            self.pool.line = line
        self._returns: dict[int, asyncio.Task[None]] = {}
        self._gone: set[int] = set()
        """Those that nobody brings back: requests fail at once when all are."""

    async def open(self, *, wait: bool) -> None:
        """Attach to all; one that is not there now is gone back to later. `wait` for those that are."""
        self.pool.changed.listen(self._look)
        for member in self.pool.members:
            member.state = EngineState.EJECTED
            self._return_later(member, 0.0)
        if not wait:
            return
        await asyncio.wait([self._returns[member.index] for member in self.pool.members], timeout=_LONGEST_PAUSE_S)

    def add(self, handle: Handle) -> None:
        """One more engine, which serves soon."""
        self._handles = (*self._handles, handle)
        member = self.pool.add(self._remote(len(self._handles) - 1))
        member.state = EngineState.EJECTED
        self._return_later(member, 0.0)

    def drop(self, place: int) -> None:
        """The engine at this place serves nothing more."""
        member = self.pool.members[place]
        self._gone.add(place)
        member.gone(_Gone("it was taken out of the run"), self._host.clock.now(), dismissed=True)
        if (task := self._returns.pop(place, None)) is not None:
            task.cancel()
        self._changed()

    async def close(self) -> None:
        """Ask nothing more."""
        for task in list(self._returns.values()):
            task.cancel()
        for member in self.pool.members:
            if isinstance(member.engine, RemoteEngine):
                await member.engine.detach()

    def _remote(self, place: int) -> RemoteEngine:
        return RemoteEngine(
            self._host.reach(self._handles[place]), self._host, self._host.name, rank=place, changed=self._changed
        )

    def _changed(self) -> None:
        self.pool.look()
        self.pool.changed.notify()

    def _look(self) -> None:
        for member in self.pool.members:
            away = member.state in (EngineState.EJECTED, EngineState.GONE)
            if away and member.index not in self._returns and member.index not in self._gone:
                self._return_later(member, pause_after(1))

    def _return_later(self, member: Member, pause_s: float) -> None:
        self._returns[member.index] = self._host.spawn(self._return(member, pause_s), f"return to {member.name}")

    async def _return(self, member: Member, pause_s: float) -> None:
        failures = 0
        try:
            while not member.is_up:
                await self._host.clock.sleep(min(pause_s, _LONGEST_PAUSE_S))
                try:
                    engine = await self._back(member.engine, None)
                except _Gone as error:
                    self._gone.add(member.index)
                    member.gone(error, self._host.clock.now())
                    return
                except (EngineError, WaitTimeout, OSError):
                    failures += 1
                    pause_s = pause_after(failures)
                    continue
                member.replace(engine)
                member.deaths = 0
        finally:
            self._returns.pop(member.index, None)
            self.pool.recount()
            self.pool.changed.notify()

    async def _back(self, dead: Engine, receiver: WeightReceiver | None) -> Engine:
        assert isinstance(dead, RemoteEngine)
        await dead.detach()
        engine = self._remote(dead.rank)
        try:
            await engine.attach()
        except BaseException as error:
            await engine.detach()
            if engine.is_gone:
                raise _Gone(str(error)) from error
            raise
        return engine


class _Gone(EngineError):
    """An engine died, and nobody will bring it back."""
