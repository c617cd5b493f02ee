"""Workers: what holds models or runs users' code, each in a place of its own, and how they are spoken to.

A worker is an object of a class with a `kind` and `types`, made as `W(spec, host)`. Its public methods can be called.
An async method runs in the event loop of the worker's process, a blocking one on the worker's lane; so do async and
plain generators, which are streams. Specs, arguments, results and items are plain data
(`runtime/wire/wire_format.py`), whether the worker is in a process of its own or not. If it has a method `close`, async
or blocking, that is called at its end. If its class has a method `lanes`, called with the spec and the host, that says
how lanes are run in a process of its own: by a `ThreadPlacement`, or None for a thread each. In the run's process they
are shared, and the run has said how.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref
from headrace.runtime.signal import Signal
from headrace.runtime.wire.wire_types import WireTypes


class WorkerError(HeadraceError, RuntimeError):
    """What a worker raised. It is there still."""

    def __init__(self, rank: int, type: str, text: str, *, worker: str = "", trace: str = "") -> None:
        super().__init__(f"{worker or f'worker {rank}'}: {type}: {text}")
        self.rank = rank
        self.worker = worker
        """Its name, as rollout/0; may be empty."""
        self.type = type
        """The name of the error's class."""
        self.text = text
        self.trace = trace
        """Where in the worker it was raised, as Python prints it; empty for an error whose words are for the user."""
        self.is_fault = bool(trace)
        if trace:
            self.add_note(f"Raised in {worker or f'worker {rank}'}:\n{trace}")


class WorkerLost(HeadraceError, RuntimeError):
    """A worker has ended, or had to be ended. `Workers.restart` makes it anew."""

    def __init__(self, rank: int, reason: str, *, worker: str = "") -> None:
        super().__init__(f"{worker or f'worker {rank}'} is lost: {reason}")
        self.rank = rank
        self.reason = reason
        self.worker = worker
        """Its name, as rollout/0; may be empty."""


@dataclass(frozen=True, slots=True)
class Handle:
    """By which one worker calls another. Plain data."""

    worker: str
    """Its name, as rollout/0."""
    rank: int
    address: str
    """Of the process that it is in; empty within one process."""


DEADLINE_S = 600.0
"""Of calls that are given none."""


@dataclass(frozen=True, slots=True)
class Silence:
    """How long the event loop of a worker's process may stand: a process whose loop does so longer is ended."""

    most_s: float = 30.0
    key: str = ""
    """Of the config, that says so."""

    def reason(self, silent_s: float) -> str:
        allowed = f" ({self.key})" if self.key else ""
        return f"its event loop has not turned for {silent_s:.0f} s, of which {self.most_s:g} are allowed{allowed}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where workers are, and what is expected of them."""

    process: bool = False
    """Each in a process of its own, on this machine."""
    threads: int | None = None
    """Processors that each may compute with, where it has a process of its own; all of them unless given."""
    deadline_s: float = DEADLINE_S
    """Of calls that are given none."""
    start_s: float = 300.0
    """In which a worker has to be made."""
    silence: Silence = Silence()
    """Of a worker that has a process of its own."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """See `Progress`; of what works in a process of its own. One that is stuck is ended."""
    beside: Callable[[int], str] | None = None
    """By rank the worker, as engine/0, on whose machine each is to be, in every life of it: where workers may be on
    several."""


BASE_TYPES = WireTypes({"ref": Ref, "handle": Handle})
"""What every worker can be told."""


class Peer(Protocol):
    """One worker, seen from another."""

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Workers.call`."""

    def stream(self, method: str, *args: Any, what: str, seconds: float | None = None) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""

    @property
    def here(self) -> object | None:
        """The worker itself, where it is in this process and nothing is copied; None elsewhere, and if it is lost. For
        what is asked so often that messages would cost more than it does."""


class Host(Services, Protocol):
    """What a worker is made with. Lanes are its own, whatever they are called."""

    @property
    def name(self) -> str:
        """Kind and rank, as rollout/0."""

    @property
    def rank(self) -> int: ...

    @property
    def threads(self) -> int | None:
        """Processors to compute with; None: as many as the lane is given (`rebalance`)."""

    def reach(self, handle: Handle) -> Peer: ...


class Worker(Protocol):
    """What a class of workers has, beside its methods and `(spec, host)` to be made with."""

    kind: ClassVar[str]
    """Its name: begins the names of its workers, and of their lanes."""
    types: ClassVar[WireTypes]
    """What crosses to and from it, beside `BASE_TYPES`; also in columns that it puts or reads, and to and from other
    workers that it asks."""


W_co = TypeVar("W_co", covariant=True)


class Workers(Protocol[W_co]):
    """The workers of a kind, by rank."""

    @property
    def handles(self) -> Sequence[Handle]: ...

    @property
    def lost(self) -> Mapping[int, str]:
        """Those that have ended, with the reason."""

    @property
    def changed(self) -> Signal:
        """Of `lost`."""

    async def call(
        self, method: str, *args: Any, rank: int | None = None, what: str, seconds: float | None = None
    ) -> list[Any]:
        """The answers of all, in the order of ranks; or of the one `rank`.

        `what`: for messages, as "the log-probs of a batch". Raises WaitTimeout after `seconds` (the placement's
        deadline unless given), WorkerError, WorkerLost, and WireError for arguments that are no plain data. If one of
        several fails, the others are told to stop and have ended before it is raised. So it is if the caller is
        cancelled: this returns once the worker has answered or is lost. A worker that does not even stop is ended.
        """

    def stream(
        self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """The items of a generator, as they come. A worker is few items ahead of who reads them. Each is waited for
        `seconds`. Closing it tells the worker to stop; use `contextlib.aclosing`. Raises what `call` does."""

    def here(self, rank: int) -> object | None:
        """See `Peer.here`."""

    async def restart(self, rank: int) -> None:
        """End it, if it is there, and make it anew from its spec. Calls in flight and its refs are lost. Raises what
        making it raises, and WorkerLost of one that has left."""

    async def cleared(self, rank: int) -> None:
        """Once nothing is left of the last life of one that is lost: it writes nothing more."""

    async def kill(self, rank: int, reason: str) -> None:
        """End it at once, as a crash does."""

    async def add(self, spec: object) -> int:
        """Make one more, placed as the others are. Its rank is the next one. Raises what making it raises."""

    async def leave(self, rank: int) -> None:
        """End it for good, by its own `close`, and one that is being made anew once it is: it is not among the lost,
        and its rank is nobody's."""

    async def close(self) -> None:
        """End all, each with its own `close`, if it has one."""
