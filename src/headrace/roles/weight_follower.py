"""The weight follower: has an engine take each new version, and wakes whoever waited for it."""

from __future__ import annotations

from headrace.engines.protocol import Engine, EngineError, SwapMode
from headrace.roles.context import RoleContext
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError, WeightReceiver

NAME = "weight_follower"
_MOST_FAILURES = 3
"""Updates in a row that may fail before the run does; the engine keeps its version meanwhile."""


class WeightFollowerRole:
    def __init__(
        self,
        context: RoleContext,
        engine: Engine,
        receiver: WeightReceiver,
        published: Signal,
        mode: SwapMode,
    ) -> None:
        self._context = context
        self._engine = engine
        self._receiver = receiver
        self._published = published
        self._mode = mode

    async def run(self) -> None:
        """For ever: the run ends it."""
        failures = 0
        while True:
            latest = self._receiver.latest()
            if latest is None or latest <= self._engine.version:
                await self._wait()
                continue
            try:
                await self.follow()
                failures = 0
            except (WeightError, EngineError) as error:
                failures += 1
                self._context.report("update_failed", {"version": str(latest), "message": str(error)})
                if failures == _MOST_FAILURES:
                    raise

    async def follow(self) -> None:
        """One update to the newest version, reported."""
        report = await self._engine.update(self._receiver, self._mode)
        if report is not None:
            self._context.report(
                "swap",
                {
                    "version": str(report.version),
                    "flip_s": report.flip_s,
                    "prefill_s": report.prefill_s,
                    "recomputed_tokens": report.recomputed_tokens,
                    "interrupted": report.interrupted,
                },
            )
        self._context.flow.changed.notify()

    async def _wait(self) -> None:
        try:
            await self._published.wait(self._context.runtime.clock, self._context.stall_timeout_s, "a new version")
        except WaitTimeout as stall:
            self._context.report("waiting", {"role": NAME, "message": str(stall)})
