"""A batch that begins again and again, since its columns are gone."""

from __future__ import annotations

import pytest

from headrace.roles.actors.begun_again import BatchLost, BegunAgain
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.virtual import VirtualRuntime, run_virtually

LOST = RefLost(Ref("trainer/0", 4, ("tokens",)))


def test_it_pauses_longer_each_time_and_gives_up_at_the_eighth() -> None:
    async def main(runtime: VirtualRuntime) -> list[float]:
        again, ends = BegunAgain(runtime.clock), []
        for _ in range(7):
            await again.after(3, LOST)
            ends.append(runtime.clock.now())
        with pytest.raises(BatchLost, match=r"batch 3 has begun 8 times, .*trainer/0 does not keep .* --resume"):
            await again.after(3, LOST)
        return ends

    assert run_virtually(main) == [0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 31.75]


def test_another_batch_counts_anew_and_a_stop_ends_the_pause() -> None:
    async def main(runtime: VirtualRuntime) -> float:
        again = BegunAgain(runtime.clock)
        for batch in range(20):
            await again.after(batch, LOST)
        before = runtime.clock.now()
        await again.after(19, LOST, until=lambda: True)
        assert runtime.clock.now() == before
        return before

    assert run_virtually(main) == 5.0
