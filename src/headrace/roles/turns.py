"""By turns: engines and models in training have the same devices, and never memory for both.

The engines have them while a batch is generated; from the moment that it is sealed, and nobody evaluates, those that
train, until the version that follows can be received, and what goes into a checkpoint is copied. Then the engines take
that version, or, where nothing was trained, the one that they had: they drop their weights, so that they serve no
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.engines.pool import EnginePool
from headrace.observe import spent
from headrace.roles.context import RoleContext
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.together import together

NAME = "turns"


class Sleeper(Protocol):
    """A model in training; see `TrainerGroup`."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class Turns(Protocol):
    @property
    def shares_devices(self) -> bool:
        """Whether engines and those that train have the same devices, one after another."""

    @property
    def holds_rows(self) -> bool:
        """Whether those that train have rows of a batch only once it is sealed, whatever the mode."""

    async def of_batch(self) -> None:
        """Until those that train may compute with rows of the batch: it is sealed, and the engines sleep."""

    async def train(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Until those that train may compute. False if `until()` held before an evaluation had ended that is waited
        for: see `look`."""

    def look(self) -> None:
        """Have `train` look whether it is to end."""

    def trained(self) -> None:
        """A batch is: its version is about to be published, and engines to take it."""

    async def generate(self) -> None:
        """Those that train have done, and what they made can be received: the engines are to serve. Returns once they
        may."""


class NoTurns:
    """Each has memory of its own."""

    shares_devices = False
    holds_rows = False

    async def of_batch(self) -> None:
        """See `Turns.of_batch`."""

    async def train(self, until: Callable[[], bool] = lambda: False) -> bool:
        """See `Turns.train`."""
        return True

    def look(self) -> None:
        """See `Turns.look`."""

    def trained(self) -> None:
        """See `Turns.trained`."""

    async def generate(self) -> None:
        """See `Turns.generate`."""


class SharedDevices:
    """See `Turns`. Whoever asks for what there is already goes on at once."""

    shares_devices = True
    holds_rows = True

    def __init__(self, context: RoleContext, pool: EnginePool, models: Sequence[Sleeper]) -> None:
        """`models` in training, which sleep."""
        self._context = context
        self._pool = pool
        self._models = tuple(models)
        self._awake = False
        """All of those that train."""
        self._asked: list[Callable[[], bool]] = []
        """Of each that waits in `train` whether it is to end: it may wait for another that waits for an evaluation."""
        self._changing = asyncio.Lock()

    async def of_batch(self) -> None:
        """See `Turns.of_batch`."""
        flow = self._context.flow
        while not flow.is_sealed:
            await self._context.changed(NAME, "the batch to be whole")
        await self.train()

    async def train(self, until: Callable[[], bool] = lambda: False) -> bool:
        """See `Turns.train`. Raises WorkerLost."""
        self._asked.append(until)
        try:
            while not await self._wake():
                if until():
                    return False
            return True
        finally:
            self._asked.remove(until)

    def look(self) -> None:
        """See `Turns.look`."""
        self._pool.changed.notify()

    def trained(self) -> None:
        """See `Turns.trained`."""

    async def generate(self) -> None:
        """See `Turns.generate`. Raises WorkerLost."""
        async with self._changing:
            if self._awake:
                with self._context.activity.training(spent.CHANGES):
                    self._awake = False  # if one is lost meanwhile, some are, and `train` is to wake them all
                    await together(model.sleep() for model in self._models)
            if self._pool.sleep.is_on:
                self._pool.sleep.rise()

    async def _wake(self) -> bool:
        """False if somebody in `train` was to end before an evaluation had; the others may ask again behind it."""
        async with self._changing:
            if self._awake:
                return True
            with self._context.activity.training(spent.CHANGES):
                if not await self._engines_asleep(lambda: any(until() for until in self._asked)):
                    self._pool.sleep.rise()
                    return False
                await together(model.wake() for model in self._models)
            self._awake = True
            return True

    async def _engines_asleep(self, until: Callable[[], bool]) -> bool:
        """An evaluation is waited for: its own deadline ends it. False if `until()` holds first."""
        context = self._context
        while True:
            try:
                return await self._pool.sleep.lie_down(context.stall_timeout_s, until)
            except WaitTimeout as late:
                context.report("waiting", {"role": NAME, "message": late.so_far})
