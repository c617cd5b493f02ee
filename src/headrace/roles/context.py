"""What every role is handed beside its own parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.experience.flow import Flow
from headrace.experience.index import Sampler
from headrace.experience.table import ExperienceTable, Lease
from headrace.observe.events import EventSink
from headrace.observe.spent import Activity
from headrace.observe.waits import WaitMeter
from headrace.runtime.patience import Patience, StandStill, standing_with
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.refs import Refs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoleContext:
    runtime: Runtime
    flow: Flow
    table: ExperienceTable
    waits: WaitMeter
    report: EventSink
    stall_timeout_s: float
    computing: Counter[str] = field(default_factory=Counter)
    """What roles compute now."""
    activity: Activity = field(default_factory=Activity)
    elsewhere: Callable[[], str] = str
    """What is waited for outside of the run, in words; empty if nothing is."""

    @property
    def refs(self) -> Refs:
        """Where the table's columns are kept."""
        return self.table.refs

    async def compute(self, lane: str, what: str, function: Callable[..., T], *args: Any) -> T:
        """`runtime.compute`, within the time limit of all waits. Raises WaitTimeout, which names `what`."""
        return await self.computed(lane, what, self.runtime.compute(lane, function, *args))

    async def computed(self, lane: str, what: str, computing: Awaitable[T], still: StandStill | None = None) -> T:
        """What `computing` gives, which is at work on `lane` or in a worker of that kind. As `compute`; while `still`
        stands, the time limit stands still, too."""
        name = f"{what} (lane {lane})"
        self.computing[name] += 1
        try:
            with self.activity.computes(lane):
                if still is None:
                    return await self.runtime.clock.wait_for(computing, self.stall_timeout_s, name)
                patience = Patience(self.runtime.clock, self.stall_timeout_s)
                with standing_with(still, [patience.still]):
                    return await patience.wait_for(computing, name)
        except WaitTimeout as late:
            raise WaitTimeout(f"{late.what}{self.unfinished()}", late.seconds) from late
        finally:
            self.computing[name] -= 1

    def unfinished(self) -> str:
        """What roles compute now, and what is waited for elsewhere, for messages; begins with a semicolon, if there is
        anything."""
        names = ", ".join(name for name, count in self.computing.items() if count)
        told = ([f"not finished: {names}"] if names else []) + [word for word in (self.elsewhere(),) if word]
        return "".join(f"; {word}" for word in told)

    async def changed(self, side: str, what: str) -> None:
        """Until the flow changes. A wait past the time limit is reported, and goes on: the actor's own wait, which
        depends on every other role's, is the one that ends a stalled run."""
        with self.waits.waiting(side, what):
            while True:
                try:
                    return await self.flow.changed.wait(self.runtime.clock, self.stall_timeout_s, what)
                except WaitTimeout as stall:
                    self.report("waiting", {"role": side, "message": stall.so_far})

    def leases(self, consumer: str, sampler: Sampler, what: str) -> AsyncIterator[Lease]:
        """Leases for a role that follows the flow until the run is finished. No generator: nothing of it is left open
        where it is left early."""
        return _Leases(self, consumer, sampler, what)


@dataclass(slots=True)
class _Leases:
    context: RoleContext
    consumer: str
    sampler: Sampler
    what: str

    def __aiter__(self) -> _Leases:
        return self

    async def __anext__(self) -> Lease:
        context, flow = self.context, self.context.flow
        while not flow.is_finished:
            try:
                with context.waits.waiting(self.consumer, self.what):
                    lease = await context.table.lease(
                        self.consumer,
                        self.sampler,
                        seconds=context.stall_timeout_s,
                        what=lambda: self.what,
                        until=lambda: flow.is_finished,
                    )
            except WaitTimeout as stall:
                context.report("waiting", {"role": self.consumer, "message": stall.so_far})
                continue
            if lease is not None:
                return lease
        raise StopAsyncIteration
