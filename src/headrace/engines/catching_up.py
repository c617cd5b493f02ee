"""An engine that is made comes to the newest version before it serves."""

from __future__ import annotations

from contextlib import suppress

from headrace.engines.protocol import Engine, SwapMode
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.plane import NotThereYet, WeightError, WeightReceiver
from headrace.weights.version import INITIAL, Version

_ARRIVES_S = 300.0
"""In which a version comes to where a new engine takes it from: a relay of its own, which may have to be made anew."""
_LOOK_S = 5.0
"""After which it is tried again in any case: it may have come during a try."""


async def started(engine: Engine, receiver: WeightReceiver | None, *, attached: bool = False) -> None:
    """`engine`, with the newest version that `receiver` has; with what it was made with only if that is version 0 of
    the run, and it was made for the run, not `attached`. Raises EngineError, ConfigError, WeightError."""
    await engine.start()
    await caught_up(engine, receiver, attached=attached)


async def caught_up(engine: Engine, receiver: WeightReceiver | None, *, attached: bool = False) -> None:
    """Once an engine that serves nobody yet holds the newest version that `receiver` has, those included that are
    published meanwhile. `attached`: what it holds is of no version of the run. Raises EngineError, WeightError."""
    while receiver is not None and is_behind(receiver, engine.version, attached=attached):
        if await engine.update(receiver, SwapMode.RECOMPUTE) is None:
            return
        attached = False


def is_behind(receiver: WeightReceiver | None, held: Version = INITIAL, *, attached: bool = False) -> bool:
    """Whether `receiver` has a version that an engine with `held` does not have; any, if it is only `attached`. Raises
    WeightError."""
    latest = None if receiver is None else receiver.latest()
    return latest is not None and (latest > held or attached)


async def have_newest(
    engine: Engine,
    name: str,
    receiver: WeightReceiver | None,
    clock: Clock,
    changed: Signal,
    *,
    attached: bool = False,
) -> None:
    """As `caught_up`, once what is newest now has come to where the engine, called `name`, takes it from. `changed`:
    notified when something has come there. Raises EngineError, WeightError."""
    newest = None if receiver is None else receiver.latest()
    end = clock.now() + _ARRIVES_S
    while True:
        missing = WeightError(f"{newest} did not come to where {name} takes it from in {_ARRIVES_S:g} s")
        try:
            await caught_up(engine, receiver, attached=attached)
            if newest is None or engine.version >= newest:
                return
        except NotThereYet as error:
            missing = error
        if (left := end - clock.now()) <= 0:
            raise missing
        with suppress(WaitTimeout):
            await changed.wait(clock, min(left, _LOOK_S), "")
