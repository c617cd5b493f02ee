"""An engine whose worker is lost before the run is under way is made anew, a few times."""

from __future__ import annotations

import pytest

from headrace.engines.absent import AbsentEngine
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import Engine, EngineError
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost
from headrace.weights.plane import WeightReceiver


class LostAtStart(AbsentEngine):
    async def start(self) -> None:
        self.failure = WorkerLost(0, "its node is gone", worker="engine/0")
        raise EngineError("the engine died: its node is gone")


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_one_that_is_lost_at_its_start_is_made_anew_twice(losses: int) -> None:
    made: list[Engine] = []

    async def again(dead: Engine, receiver: WeightReceiver | None) -> Engine:
        engine = AbsentEngine() if len(made) + 1 == losses else LostAtStart()
        made.append(engine)
        await engine.start()
        return engine

    async def main(runtime: VirtualRuntime) -> None:
        pool = EnginePool([AbsentEngine(), LostAtStart()], runtime.clock, revive=again)
        if losses == 3:
            with pytest.raises(EngineError, match="its node is gone"):
                await pool.start()
        else:
            await pool.start()
            assert [member.state for member in pool.members] == [EngineState.SERVING] * 2
            assert pool.members[1].engine is made[-1]
            told: list[str] = []
            pool.events.tell_to(lambda kind, data: told.append(kind))  # the run's record is made once engines are there
            assert told == ["engine_died"] * losses + ["engine_back"]
        assert len(made) == min(losses, 2)

    run_virtually(main)


def test_one_that_does_not_come_back_ends_the_start() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        with pytest.raises(EngineError, match="its node is gone"):
            await EnginePool([LostAtStart()], runtime.clock).start()

    run_virtually(main)


class Slow(AbsentEngine):
    """As an inference server: half a minute to be there, five seconds to end."""

    def __init__(self, runtime: VirtualRuntime, seconds: float) -> None:
        self._clock = runtime.clock
        self._seconds = seconds

    async def start(self) -> None:
        await self._clock.sleep(self._seconds)

    async def stop(self) -> None:
        await self._clock.sleep(self._seconds / 6)


def test_engines_start_and_stop_together() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        clock = runtime.clock
        pool = EnginePool([Slow(runtime, 30.0), Slow(runtime, 18.0), Slow(runtime, 6.0)], clock)
        await pool.start()
        assert clock.now() == pytest.approx(30.0)
        assert all(member.state is EngineState.SERVING for member in pool.members)
        await pool.stop()
        assert clock.now() == pytest.approx(35.0)

    run_virtually(main)
