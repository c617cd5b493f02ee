"""An engine that is a worker, as those who ask it see it: in the controller, or in another worker by a `Handle`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Protocol, cast

from headrace.config import ConfigError
from headrace.engines.liveness import Liveness
from headrace.engines.member import NO_STATS
from headrace.engines.protocol import (
    Engine,
    EngineError,
    EngineStats,
    GenerateRequest,
    RequestError,
    SwapMode,
    SwapReport,
    Tag,
    TokenChunk,
    UncertainVersions,
    VersionHeld,
)
from headrace.engines.remote_pin import RemotePin
from headrace.engines.remote_requests import RemoteRequests
from headrace.engines.remote_types import QUIET_S, SILENCE_S, EngineStatus, Output, RequestFailed
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.workers import Peer, WorkerError, WorkerLost
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.seen import Seen
from headrace.weights.version import INITIAL, Version

_SWAP_S = 7200.0
"""In which new weights have to be taken: the engine's own limits on pins and sequences in flight are shorter."""
START_S = 1800.0
"""A large model is moved, and its passes are tried or captured."""
_FOR_EVER_S = 1e9
_STOP_S = 90.0

_ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (WeightError, ConfigError, VersionHeld)}
"""Of a worker's errors, those that are told as what they are."""
_LOST = (WorkerLost, WorkerError, WaitTimeout, ConnectionError)


class EngineHere(Protocol):
    """The worker of an engine, for those who are in the same process."""

    @property
    def engine(self) -> Engine: ...

    def state(self) -> EngineStatus:
        """Now."""


class RemoteEngine:
    """See `Engine`. Of all requests of one client, chunks come by one stream, those of a decode step in one message;
    of an engine in this process, whose requests would cost more than what they bring, each by a stream of its own.

    What it says of the engine (`version`, `stats`, `failure`) is what was heard last: a version that is older than the
    engine's own, for as long as a message takes, and never one that is newer. Version and stats of one in this process
    are its own. The end of the worker is the death of the engine; another `RemoteEngine` takes its place once the
    worker is made anew.
    """

    gives_kept_sets = True

    def __init__(
        self,
        peer: Peer,
        services: Services,
        client: str,
        *,
        rank: int = 0,
        worker: str = "",
        changed: Callable[[], None] = lambda: None,
        start_s: float = START_S,
    ) -> None:
        """`client`: who asks; nobody else has this name. `rank` of the worker, and `worker`, its name, where it takes
        weights. `changed` is called when version or failure has. `start_s`: in which it has to `start`."""
        self.rank = rank
        self._worker = worker
        self._peer = peer
        self._services = services
        self._client = client
        self._changed = changed
        self._start_s = start_s
        self._status = EngineStatus(INITIAL, 0, NO_STATS)
        self._heard_at = services.clock.now()
        self._idle_s = 0.0
        """As it was told last."""
        self.quiet: StandStill = StandStill(services.clock)
        """See `Engine.quiet`."""
        self._liveness = Liveness()
        self._requests = RemoteRequests(self._call, services, client, self._liveness)
        self._tasks: list[asyncio.Task[None]] = []
        self._open = asyncio.Event()
        """The stream of outputs is there, or will not be."""

    @property
    def version(self) -> Version:
        here = self._here()
        return self._status.version if here is None else max(here.engine.version, self._status.version)

    @property
    def failure(self) -> Exception | None:
        return self._liveness.failure

    @property
    def rests(self) -> bool:
        here = self._here()
        return self._status.rests if here is None else here.engine.rests

    @property
    def asleep(self) -> tuple[Tag, ...]:
        here = self._here()
        return self._status.asleep if here is None else here.engine.asleep

    @property
    def is_gone(self) -> bool:
        """It died, and nobody will bring it back."""
        return self._status.is_gone

    @property
    def slots(self) -> int:
        """Raises EngineError before `start` or `attach`."""
        if not self._tasks:
            raise EngineError("the engine was not started: it has no slots yet")
        return self._status.slots

    async def start(self, *, is_behind: bool = False) -> None:
        """Have the engine serve, and listen to it. `is_behind`: there are newer weights than those that it is made
        with, so it rests until it is updated, for all who ask it. Raises EngineError."""
        await self._call("start", is_behind, what="the engine to start", seconds=self._start_s)
        await self.attach()

    async def attach(self) -> None:
        """Listen to an engine that serves already, and that somebody else starts and stops. Raises EngineError."""
        self._hear(await self._call("status", what="the engine's state"))
        self._tasks = [
            self._services.spawn(self._read_outputs(), "outputs of an engine"),
            self._services.spawn(self._read_statuses(), "states of an engine"),
            *([self._services.spawn(self._listen(), "silence of an engine")] if self._peer.here is None else []),
        ]
        self._liveness.started = True
        await self._services.clock.wait_for(self._open.wait(), START_S, "the engine's outputs")
        self._liveness.check_alive()

    async def detach(self) -> None:
        """Ask nothing more; the engine serves on for others."""
        self._note_last()
        self._liveness.stopping = True
        self._is_heard()
        self._requests.end("the client has left it")
        tasks, self._tasks = [*self._tasks, *self._requests.tasks], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """See `Engine.stop`. Of one that is lost, nothing is asked."""
        self._note_last()
        self._liveness.stopping = True
        if self._tasks and not self._liveness.is_dead:
            with suppress(EngineError):
                self._hear(await self._call("stop", what="the engine to stop", seconds=_STOP_S))
        await self.detach()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        """See `Engine.generate`."""
        here = cast(EngineHere | None, self._peer.here)
        return self._asked(request) if here is None else self._asked_here(here, request)

    async def _asked(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        self._liveness.check()
        chunks = self._requests.submit(request)
        finished = False
        try:
            while not finished:
                chunk = await chunks.get()
                finished = isinstance(chunk, RequestFailed) or chunk.finish_reason is not None
                if isinstance(chunk, RequestFailed):
                    if not chunk.is_refused:
                        await self._look_after()
                    raise _error_of(chunk)
                yield chunk
        finally:
            if not finished:
                self.abort([request.request_id])
            self._requests.forget(request.request_id)

    async def _look_after(self) -> None:
        """A request failed: whoever asked looks whether the engine has died."""
        if not self._liveness.has_ended:
            with suppress(EngineError):
                self._hear(await self._call("status", what="the engine's state"))

    async def _asked_here(self, here: EngineHere, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        self._liveness.check()
        try:
            async with aclosing(here.engine.generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except EngineError:
            self._hear(here.state())  # whoever asked looks whether it has died
            raise

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `Engine.abort`."""
        here = cast(EngineHere | None, self._peer.here)
        if here is not None:
            here.engine.abort(request_ids)
            return
        self._requests.abort(request_ids)

    async def sees(self) -> Seen:
        """Where its worker is. Raises EngineError."""
        found: Seen = await self._call("sees", what="where it is", seconds=START_S)
        return found

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """See `Engine.update`. What the engine receives is the receiver's offer. Raises WeightError, EngineError, and
        VersionHeld of that."""
        self._liveness.check()
        offer = receiver.near(self._worker).offer()
        if offer is None:
            return None
        report: SwapReport | None = await self._call("update", offer, mode, what="new weights", seconds=_SWAP_S)
        if report is not None:
            self._reached(report.version)
        return report

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        """See `Engine.sleep`. Raises EngineError."""
        self._liveness.check()
        self._hear(await self._call("sleep", tuple(tags), sends_away, what="the engine to sleep", seconds=_SWAP_S))

    async def wake(self, tags: Sequence[Tag]) -> None:
        """See `Engine.wake`. Raises EngineError."""
        self._liveness.check()
        self._hear(await self._call("wake", tuple(tags), what="the engine to wake", seconds=_SWAP_S))

    async def revive(self, receiver: WeightReceiver | None) -> None:
        """Of an engine that died in a worker that lives: another in its place, see `Revive`. Then a new `RemoteEngine`
        speaks to it. Raises WeightError, EngineError."""
        offer = None if receiver is None else receiver.near(self._worker).offer()
        await self._call("revive", offer, what="the engine to come back", seconds=START_S)

    def kill(self, reason: str) -> None:
        """Have the engine die of `reason`, for whoever must see one die; its worker lives."""
        self._services.spawn(self._call("kill", reason, what="its death"), "the death of an engine")

    def pin(self) -> RemotePin:
        """See `Engine.pin`. Should the engine just have taken another version, the pin is lost (`RemotePin.is_lost`):
        it holds this one or none."""
        self._liveness.check()
        return RemotePin(self._call, self._services, self._client, self.version, self._changed)

    def stats(self) -> EngineStats:
        """As it was heard last, and since then it rests if it did; of an engine in this process, now: what its time
        goes to is told by the moment. `idle_s` never falls."""
        if (here := self._here()) is not None:
            return here.engine.stats()
        stats = self._by_now()
        # Until it was heard that it works again it was taken to rest: that is made up for by its next rest.
        self._idle_s = max(self._idle_s, stats.idle_s)
        return replace(stats, idle_s=self._idle_s)

    def _by_now(self) -> EngineStats:
        stats = self._status.stats
        if not self._liveness.serves or stats.running or stats.waiting:
            return stats
        return replace(stats, idle_s=stats.idle_s + self._services.clock.now() - self._heard_at)

    def _here(self) -> EngineHere | None:
        """While it serves."""
        return cast(EngineHere | None, self._peer.here) if self._liveness.serves else None

    def _note_last(self) -> None:
        """Before it serves no more."""
        self._status = replace(self._status, stats=self.stats(), version=self.version)

    async def _call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        try:
            return await self._peer.call(method, *args, what=what, seconds=seconds)
        except WorkerError as error:
            raise _ERRORS.get(error.type, EngineError)(error.text) from error
        except (WorkerLost, WaitTimeout) as error:
            self._fail(error)
            raise EngineError(f"the engine died: {error}") from error

    async def _read_outputs(self) -> None:
        async def take(outputs: list[Output]) -> None:
            self._open.set()
            for request_id, chunk in outputs:
                self._requests.put(request_id, chunk)
                if isinstance(chunk, RequestFailed) or chunk.finish_reason is not None:
                    # Whoever waited for it goes on, and what it asks next is sent, before others compute that ended in
                    # the same step: else the engine would rest until the last of them has.
                    await asyncio.sleep(0)

        await self._read("outputs", (self._client,), take)

    async def _read_statuses(self) -> None:
        async def take(status: EngineStatus) -> None:
            self._hear(status)

        await self._read("statuses", (), take)

    async def _listen(self) -> None:
        """Notice that nothing is heard."""
        clock = self._services.clock
        while True:
            await clock.sleep(QUIET_S / 3)
            if clock.now() - self._heard_at > QUIET_S and not self.quiet.stands and self._liveness.serves:
                self.quiet.begin()

    def _is_heard(self) -> None:
        if self.quiet.stands:
            self.quiet.end()

    async def _read(self, method: str, args: tuple[Any, ...], take: Callable[[Any], Awaitable[None]]) -> None:
        # Silence in this process says that its event loop is blocked, and nothing of the engine.
        silence_s = SILENCE_S if self._peer.here is None else _FOR_EVER_S
        try:
            async with aclosing(self._peer.stream(method, *args, what=f"{method} of it", seconds=silence_s)) as items:
                async for item in items:
                    await take(item)
            self._fail(EngineError(f"it ended its {method}"))
        except _LOST as error:
            self._fail(error)

    def _hear(self, status: EngineStatus) -> None:
        newest = max(status.version, self._status.version)
        is_new = newest != self._status.version or status.rests != self._status.rests
        self._status, self._heard_at = replace(status, version=newest), self._services.clock.now()
        self._is_heard()
        if status.failure is not None:
            died = EngineError(status.failure)
            died.__cause__ = WorkerError(self.rank, status.failed_by, status.failure)
            self._fail(died)
        elif is_new:
            self._changed()

    def _reached(self, version: Version) -> None:
        left = tuple(tag for tag in self._status.asleep if tag is not Tag.WEIGHTS)
        self._hear(replace(self._status, version=version, stats=self._by_now(), rests=bool(left), asleep=left))

    def _fail(self, error: Exception) -> None:
        """It is dead: nobody may wait for it. What came before is handed out."""
        if not self._liveness.has_ended:
            self._note_last()
            self._liveness.failure = error
            self._is_heard()
            self._open.set()
            self._requests.end(str(error))
            self._changed()


def _error_of(failed: RequestFailed) -> Exception:
    if failed.is_refused:
        return RequestError(failed.text)
    return (UncertainVersions if failed.is_uncertain else EngineError)(failed.text)
