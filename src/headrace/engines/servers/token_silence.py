"""Whether a server that has requests gets on: its health may be well though it decodes nothing any more.

A token of any request is progress. So is a change of what the server says of its load: while it takes in a long prompt
piece by piece no token comes, and its cache fills. Neither is there while it is paused, and then nothing is expected.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.engines.protocol import EngineError
from headrace.engines.servers.window import ServerLoad
from headrace.runtime.progress import Progress
from headrace.runtime.protocol import Clock

_STEP = "decode_step"
_LOOK_S = 1.0


class TokenSilence:
    """The seconds since a server last got on, of those in which somebody looked."""

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s`: the most; None: see `Progress`, of which a unit is the time until the next token."""
        self._progress = Progress({} if limit_s is None else {_STEP: limit_s})
        self._load: ServerLoad | None = None
        self.seconds = 0.0

    @property
    def limit_s(self) -> float:
        return self._progress.limit(_STEP)

    def token(self) -> None:
        """One came."""
        self._progress.took(_STEP, self.seconds)
        self.seconds = 0.0

    def heard(self, load: ServerLoad) -> None:
        """What it says of its load. It is no token: before the first one kernels may be compiled still."""
        if load != self._load:
            self._load, self.seconds = load, 0.0

    def is_too_long(self, seconds: float, *, expected: bool) -> bool:
        """`seconds` later than at the last look; `expected`: the server has requests, and is not paused."""
        self.seconds = self.seconds + seconds if expected else 0.0
        return self.seconds > self.limit_s


async def until_stuck(name: str, silence: TokenSilence, clock: Clock, owed: Callable[[], int]) -> EngineError:
    """Looks for ever, or until the server is stuck. `name`: its own. `owed`: requests that it is to give tokens of."""
    looked = clock.now()
    while True:
        await clock.sleep(_LOOK_S)
        before, looked = looked, clock.now()
        # Time in which this process did not turn itself says nothing of the server.
        count, seconds = owed(), min(looked - before, 2 * _LOOK_S)
        if silence.is_too_long(seconds, expected=count > 0):
            return EngineError(
                f"{name} is stuck: of {count} requests no token has come for {silence.seconds:.0f} s, of which "
                f"{silence.limit_s:.0f} are allowed (runtime.stuck.decode_step_s), and its load is the same"
            )
