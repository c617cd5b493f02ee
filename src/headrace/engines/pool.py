"""Engines of any number behind one object: who serves, who is chosen, who is waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, Protocol

from headrace.engines.absent import AbsentEngine
from headrace.engines.admission import AnyLineage, VersionLineage, admit, admit_spread, route, to_pin
from headrace.engines.catching_up import have_newest, started
from headrace.engines.downtime import Downtime
from headrace.engines.lent import Kill, LentEngines
from headrace.engines.member import Member, Revive, last_failure, summed
from headrace.engines.pinned_engines import PinnedEngines
from headrace.engines.place import Place, RequestLoad
from headrace.engines.pool_sleep import PoolSleep
from headrace.engines.pool_state import EngineState, EngineView
from headrace.engines.protocol import Engine, EngineError, EngineStats, SwapMode, SwapReport
from headrace.observe.events import Events
from headrace.runtime.breakable import Breakable, BrokenOff
from headrace.runtime.patience import StandStill, standing_with
from headrace.runtime.protocol import Clock
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import START, Measure, Often, after_failure
from headrace.runtime.together import together
from headrace.runtime.workers import Handle, WorkerLost
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL, Version

Spread = Literal["group", "episode"]


class Hires(Protocol):
    """Makes engines while others serve."""

    @property
    def kind(self) -> str:
        """Of the engines that it makes, as `engine.kind` has it."""

    async def hire(self) -> tuple[Engine, Handle]:
        """One more, not started, and by which it is reached. Raises EngineError, ConfigError."""

    async def release(self, index: int) -> None:
        """End the engine of this index in its pool, which is stopped."""


Came = Callable[[Engine, str], Awaitable[None]]
"""Given an engine that came, or was made anew, and its worker, before it takes a version: it may be anywhere."""


class EnginePool:
    """All methods are called from the run's event loop. A pool of one behaves as its engine does."""

    def __init__(
        self,
        engines: Sequence[Engine],
        clock: Clock,
        *,
        revive: Revive | None = None,
        return_deadline_s: float = 0.0,
        spread: Spread = "group",
        handles: Sequence[Handle] = (),
        judge: str | None = None,
        attached: bool = False,
        lent: int = 0,
        kill: Kill | None = None,
        often: Often | None = None,
    ) -> None:
        """`revive`: how an engine that died comes back; unless given, it does not. `return_deadline_s`: how long a
        request waits for an engine that may serve it. `handles`: by which other workers reach the engines, by index,
        where these are workers. `judge`: the model that judges, where this is its engine, and not the policy's.
        `attached`: what the engines hold when they start is of no version of the run. `lent`: so many of them, the last
        ones, are on the trainer's devices. `kill`: see `LentEngines`; `often`: see `Member`."""
        self.handles = tuple(handles)
        self._revive = revive
        self.hires: Hires | None = None
        """How there come to be more engines, or fewer; None: there cannot."""
        self.came: Came | None = None
        """Told of each that comes later; None: nobody is."""
        self.judge = judge
        self._often = often
        self._attached = attached
        self.name = "the engine" if judge is None else f"the engine of judge {judge}"
        if not engines:
            raise ValueError("a pool needs at least one engine")
        name = "" if judge is None else self.name
        own = len(engines) - lent
        self.members = tuple(
            Member(index, engine, revive, name, lent=index >= own, often=often) for index, engine in enumerate(engines)
        )
        self.lent = self.members[own:]
        self.lending = LentEngines(self, kill)
        self.clock = clock
        self.return_deadline_s = return_deadline_s
        self.spread = spread
        self.line: VersionLineage = AnyLineage()
        self.changed = Signal()
        """Notified when an engine dies, comes back or takes a version, and when a pin is released."""
        self.events = Events()
        """Of its engines, to the run's record."""
        self._downtime = Downtime(clock)
        self.outage = self._downtime.outage
        """See `Downtime.outage`."""
        self._last = INITIAL
        self.sleep = PoolSleep(self)

    @classmethod
    def of(cls, engines: Sequence[Engine], clock: Clock) -> EnginePool:
        """Of engines that serve already, and are started and stopped by somebody else."""
        pool = cls(engines, clock)
        for member in pool.members:
            member.state = EngineState.SERVING
        return pool

    @property
    def is_absent(self) -> bool:
        """Nothing is generated in this run."""
        return isinstance(self.members[0].engine, AbsentEngine)

    @property
    def gives_kept_sets(self) -> bool:
        return all(member.engine.gives_kept_sets for member in self.members)

    @property
    def own(self) -> Sequence[Member]:
        """Those that are not lent."""
        return [member for member in self.members if not member.lent] if self.lent else self.members

    @property
    def slots(self) -> int:
        """Sequences that all engines decode together; known once they have started."""
        return sum(member.engine.slots for member in self.members)

    @property
    def version(self) -> Version:
        """The newest of the line that an engine serves, or served last; none that is lent."""
        held = [version for member in self.own if (version := member.version) is not None]
        held = [version for version in held if self.line.holds(version)]
        if held:
            self._last = max(held, key=lambda version: (version.number, version.branch))
        elif not self.line.holds(self._last):
            # The run went back behind it, and nobody has taken what it goes on from.
            self._last = Version(self._last.branch, self.line.floor(self._last))
        return self._last

    @property
    def failure(self) -> Exception | None:
        """Why nothing is served any more, and never will be; None while there is hope."""
        self.look()
        if any(member.state is not EngineState.GONE for member in self.members):
            return None
        return last_failure(self.members) or EngineError("all were taken out of the run")

    @property
    def down_s(self) -> float | None:
        """Seconds since an engine last served; None while one does."""
        self.look()
        return self._downtime.seconds

    @property
    def serves_line(self) -> bool:
        """Whether an engine that is not lent serves a version of the run's line. None does between a return to a commit
        and the first engine that takes what the run goes on from."""
        versions = [view.version for view in self.views() if view.serves and view.version is not None and not view.lent]
        return not self.sleep.is_on and any(map(self.line.holds, versions))

    def views(self) -> list[EngineView]:
        self.look()
        return [member.view for member in self.members]

    def stats(self) -> EngineStats:
        """Sums over the engines, those that died included."""
        return summed([member.stats() for member in self.members])

    async def start(self, line: VersionLineage | None = None, receiver: WeightReceiver | None = None) -> None:
        """Have all engines serve, begun together: each holds the newest version that `receiver` has, and what it was
        made with only if that is version 0 of the run. One whose worker is lost meanwhile is made anew, if engines come
        back. Raises EngineError, ConfigError or WeightError if one cannot."""
        self.line = line or self.line
        await together(self._start(member, receiver) for member in self.members)
        for member in self.members:
            member.state = EngineState.SERVING
        self._count_outage()
        self.changed.notify()

    async def _start(self, member: Member, receiver: WeightReceiver | None) -> None:
        try:
            return await started(member.engine, receiver, attached=self._attached)
        except EngineError as error:
            failure: Exception = error
        while True:
            why = member.engine.failure
            if member.revive is None or not isinstance(why, WorkerLost):
                raise failure
            self.lose(member, why)
            following = after_failure(START, member.deaths)
            if following.measure is Measure.STOP:
                raise failure
            await self.clock.sleep(following.pause_s)
            try:
                return await self._made_anew(member, receiver)
            except EngineError as error:
                failure = error

    async def stop(self) -> None:
        """All together: an inference server may take seconds."""
        await together(member.engine.stop() for member in self.members)

    def admit(self, is_open: Callable[[int], bool], tokens: int) -> Place | None:
        """Where a group of at most so many tokens may begin now; None if nowhere. See `engines.admission`. To be
        `taken` if it begins."""
        views = self.views()
        if self.lending.holds_back:
            return None
        if self.spread == "episode":
            version = admit_spread(views, self.line, is_open)
            return None if version is None else Place(version, left=0)
        chosen = admit(views, self.line, is_open)
        return None if chosen is None else Place(chosen[1], home=chosen[0], left=tokens)

    @contextmanager
    def taken(self, place: Place) -> Iterator[Place]:
        """The place's tokens count as load of its engine, until it is left."""
        self.lending.began()
        self._load(place, place.left)
        try:
            yield place
        finally:
            self._load(place, -place.left)
            place.left = 0

    def route(self, minimum: int | None, place: Place | None, excluded: Collection[int] = ()) -> Member | None:
        """The engine that may serve a request now; None if none may. An episode's first request finds its home, and so
        does the next one where that is gone: later ones go where its keys and values are."""
        home, only, exactly = (None, (), None) if place is None else (place.home, place.only, place.exactly)
        index = route(self.views(), self.line, minimum, excluded=excluded, only=only, exactly=exactly, home=home)
        if index is None:
            return None
        if place is not None and not only and (home is None or self.members[home].state is EngineState.GONE):
            self._load(place, -place.left)
            place.home = index
            self._load(place, place.left)
        return self.members[index]

    @contextmanager
    def asked(
        self, member: Member, place: Place | None, tokens: int, still: Sequence[StandStill] = ()
    ) -> Iterator[Callable[[int], None]]:
        """A request for so many tokens is at `member`; what is yielded is told of the tokens that came. While nothing
        is heard of the engine, the clocks `still` stand, as they do once it has died."""
        load, quiet = RequestLoad(member, place, tokens), member.engine.quiet

        def came(count: int) -> None:
            member.proven()
            load.came(count)

        with nullcontext() if quiet is None else standing_with(quiet, (self.outage, *still)):
            try:
                yield came
            finally:
                load.end()

    def pin(self, count: int = 1) -> PinnedEngines:
        """Hold the newest version on at most so many engines until released; never on all, unless only one serves.
        Raises EngineError if none does."""
        indices = to_pin(self.views(), self.line, count)
        if not indices:
            raise EngineError("no engine serves that could be pinned")
        return PinnedEngines([self.members[index] for index in indices], self.look, self.changed)

    def newest(self) -> Place:
        """One engine with the newest version, for what is to be asked of one. Raises EngineError if none serves."""
        indices = to_pin(self.views(), self.line, 1)
        if not indices:
            raise EngineError("no engine serves")
        version = self.members[indices[0]].version
        assert version is not None
        return Place(version, home=indices[0])

    def look(self) -> None:
        """Notice which engines have died."""
        found = False
        for member in self.members:
            failure = member.engine.failure if member.is_up else None
            if failure is not None:
                self.lose(member, failure)
                found = True
        self._count_outage()
        if found:
            self.changed.notify()

    def lose(self, member: Member, why: Exception) -> None:
        """`member` serves nothing more. One that is gone stays so."""
        if member.state is EngineState.GONE:
            return
        member.died(why, self.clock.now())
        word = "comes back" if member.state is EngineState.EJECTED else "does not come back"
        message = f"{member.name} died and {word}: {member.failure}"
        self.events.report("engine_died", {**self.named(member), "message": message})
        self._count_outage()

    def add(self, engine: Engine, handle: Handle | None = None) -> Member:
        """Another engine, which is asked for nothing until it is `welcome`."""
        name = "" if self.judge is None else self.name
        member = Member(len(self.members), engine, self._revive, name, often=self._often)
        self.members = (*self.members, member)
        if handle is not None:
            self.handles = (*self.handles, handle)
        return member

    async def welcome(
        self, member: Member, receiver: WeightReceiver | None, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Start its engine, and have it serve once it holds the newest version, and `before` was awaited. Raises
        EngineError, WeightError."""
        if self.came is not None and member.index < len(self.handles):
            await self.came(member.engine, self.handles[member.index].worker)
        newest = partial(have_newest, member.engine, member.name, receiver, self.clock, self.changed)
        await member.engine.start()
        await newest(attached=self._attached)
        if before is not None:
            await before()
            await newest()  # nobody had it follow meanwhile
        member.state = EngineState.SERVING
        kind = {} if self.hires is None else {"kind": self.hires.kind}
        version = {"version": str(member.engine.version)}
        self.events.report("engine_added", {**self.named(member), **kind, **version})
        self._count_outage()
        self.changed.notify()

    async def dismiss(self, member: Member, why: str) -> None:
        """It serves nothing more, and does not come back: one that is being made anew is made no further. What it has
        in flight goes on elsewhere."""
        member.gone(EngineError(why), self.clock.now(), dismissed=True)
        self.events.report("engine_removed", {**self.named(member), "message": f"{member.name}: {why}"})
        self._count_outage()
        self.changed.notify()
        if member.making is not None:
            member.making.break_off()
        await member.engine.stop()

    async def update(self, member: Member, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """Have it take the newest whole version, while it goes on serving; one that is asleep wakes with it. Raises as
        `Engine.update`, and EngineError."""
        member.state = EngineState.SWAPPING
        try:
            report = await member.engine.update(receiver, mode)
            if member.engine.asleep and not member.away:
                await member.engine.wake(member.engine.asleep)
            member.failed_swaps, member.misses_version = 0, False
            return report
        finally:
            if member.state is EngineState.SWAPPING:
                member.state = EngineState.SERVING
            self.look()
            self.changed.notify()

    async def come_back(self, member: Member, receiver: WeightReceiver | None) -> None:
        """Put an engine in the place of one that died: see `Revive`. Raises WeightError, EngineError and what building
        it raises; then it may be tried again. One that is gone, or is dismissed meanwhile, stays so: EngineError."""
        if member.state is EngineState.GONE:
            raise EngineError(f"{member.name} does not come back: {member.failure}")
        await self._made_anew(member, receiver)

    async def _made_anew(self, member: Member, receiver: WeightReceiver | None) -> None:
        revive, dead = member.revive, member.engine
        if revive is None:
            raise EngineError(f"{member.name} cannot come back")

        async def another() -> Engine:
            await dead.stop()
            return await revive(dead, receiver)

        member.state = EngineState.STARTING
        member.making = Breakable(another())
        try:
            engine = await member.making.result()
            if member.state is not EngineState.STARTING:
                await engine.stop()
                raise BrokenOff
            member.replace(engine)
        except BrokenOff:
            raise EngineError(f"{member.name} does not come back: {member.failure}") from None
        finally:
            member.making = None
            if member.state is EngineState.STARTING:
                member.state = EngineState.EJECTED
                self.changed.notify()  # somebody may wait until it is of no more use
        self.events.report("engine_back", {**self.named(member), "version": str(member.engine.version)})
        self._count_outage()
        self.changed.notify()

    def named(self, member: Member) -> dict[str, Any]:
        """How events name an engine."""
        return {"engine": member.index, **({} if self.judge is None else {"judge": self.judge})}

    def said_of(self, member: Member, words: str) -> str:
        """What happened to an engine, in words that say to which."""
        return f"{member.name}: {words}" if len(self.members) > 1 or self.judge is not None else words

    def recount(self) -> None:
        """Somebody else has changed who serves, or is to: whoever runs a member's engine, or `sleep`."""
        self._count_outage()

    def is_lost(self, member: Member, engine: Engine) -> bool:
        """Whether `engine` served there and has died since."""
        self.look()
        return engine.failure is not None or member.engine is not engine or not member.is_up

    def _load(self, place: Place, tokens: int) -> None:
        if place.home is not None:
            self.members[place.home].outstanding += tokens

    def _count_outage(self) -> None:
        self._downtime.count(serves=any(member.serves for member in self.members), sleeps=self.sleep.is_on)
