"""An engine that is added serves once it holds the newest version, which may have to come to a relay beside it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engines.absent import AbsentEngine
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.plane import NotThereYet, WeightError
from headrace.weights.version import Version

OLD, NEW = Version(0, 5), Version(0, 6)


class Published:
    """`newest`, and what has come of it to the engine's relay; None: it was lost."""

    newest = OLD
    near: Version | None = OLD

    def latest(self) -> Version:
        return self.newest


class NearRelay(AbsentEngine):
    async def update(self, receiver: Any, mode: Any) -> Any:
        if receiver.near is None:
            raise NotThereYet("relay 2 has no version yet")
        if receiver.near == self._version:
            return None
        self._version = receiver.near
        return self._version


def test_it_waits_for_the_first_version_that_comes_to_its_relay() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        clock, pool, published = runtime.clock, EnginePool([AbsentEngine()], runtime.clock), Published()
        member = pool.add(NearRelay())
        published.newest, published.near = NEW, None

        async def arrive() -> None:
            await clock.sleep(20.0)
            published.near = NEW
            pool.changed.notify()

        runtime.spawn(arrive(), "it arrives")
        await pool.welcome(member, published)  # type: ignore[arg-type]
        assert (member.state, member.engine.version) == (EngineState.SERVING, NEW)
        assert clock.now() == pytest.approx(20.0)

    run_virtually(main)


@pytest.mark.parametrize("near", [OLD, None])
@pytest.mark.parametrize("comes", [True, False])
def test_it_waits_for_what_was_published_while_others_heard_of_it(near: Version | None, comes: bool) -> None:
    """Version 6, which its relay has not, or which the relay is lost with: for 300 s."""

    async def main(runtime: VirtualRuntime) -> None:
        clock, pool, published = runtime.clock, EnginePool([AbsentEngine()], runtime.clock), Published()
        member = pool.add(NearRelay())
        states: list[EngineState] = []

        async def tell() -> None:
            published.newest, published.near = NEW, near
            if comes:
                runtime.spawn(arrive(), "it arrives")

        async def arrive() -> None:
            for _ in range(3):
                await clock.sleep(50.0)
                states.append(member.state)
                pool.changed.notify()
            published.near = NEW
            pool.changed.notify()

        if comes:
            await pool.welcome(member, published, tell)  # type: ignore[arg-type]
            assert (member.state, member.engine.version) == (EngineState.SERVING, NEW)
            assert EngineState.SERVING not in states
            assert clock.now() == pytest.approx(150.0)
        else:
            words = "did not come to where .* takes it from in 300 s" if near else "relay 2 has no version yet"
            with pytest.raises(WeightError, match=words):
                await pool.welcome(member, published, tell)  # type: ignore[arg-type]
            assert member.state is not EngineState.SERVING
            assert clock.now() == pytest.approx(300.0)

    run_virtually(main)
