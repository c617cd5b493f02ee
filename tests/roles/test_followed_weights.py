"""A model that takes the policy's versions waits for one that is not where it takes it from, and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from role_pool import STALL_S, Receiver, Scene
from scripted_relays import Scripted, forward, made

from headrace.roles.columns.scorer import FollowedWeights
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.plane import Manifest, WeightError, WeightOffer, WeightReceiver
from headrace.weights.relay.receiver import OverRelays
from headrace.weights.version import Lineage, Version


def followed(
    scene: Scene, receivers: Any, take: Any, published: Signal | None = None, lineage: Lineage | None = None
) -> FollowedWeights:
    each = receivers if isinstance(receivers, list) else [receivers]
    lineage = lineage or Lineage(0, {0: 2**62})
    return FollowedWeights(scene.context, each, published or Signal(), take, lineage, name="proximal", loaded=None)


async def take_offered(receivers: Sequence[WeightReceiver]) -> Version:
    (offer,) = [receiver.offer() for receiver in receivers]
    assert offer is not None
    return offer.version


def test_a_version_whose_relay_was_lost_is_waited_for_until_it_is_there_again() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        scene, workers = Scene(runtime, SimpleNamespace()), Scripted()
        relays, _ = await made(workers)
        await relays.carry("/first")
        receiver = OverRelays(None, relays).near("engine/0")  # type: ignore[arg-type]
        model = followed(scene, receiver, take_offered, relays.changed)
        workers.lost = {1: "killed"}
        reaching = asyncio.ensure_future(model.reach(1))
        await scene.settle()
        assert not reaching.done(), "nobody has seen the loss yet"
        await relays.mend()
        await scene.settle()
        assert not reaching.done(), "it is made anew, after a pause"
        forward(relays)
        await relays.mend()
        await reaching

    run_virtually(main)


def test_where_it_does_not_come_back_in_time_the_reason_is_told() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        scene, workers = Scene(runtime, SimpleNamespace()), Scripted()
        relays, _ = await made(workers)
        await relays.carry("/first")
        workers.lost = {1: "killed"}
        await relays.mend()
        model = followed(scene, OverRelays(None, relays).near("engine/0"), take_offered)  # type: ignore[arg-type]
        with pytest.raises(WaitTimeout, match=r"version 1 .* proximal model \(relay 1 has no version yet .*killed"):
            await model.reach(1)
        assert runtime.clock.now() == STALL_S

    run_virtually(main)


@pytest.mark.parametrize(("failures", "succeeds"), [(1, True), (5, True), (9, False)])
def test_a_version_that_could_not_be_taken_is_taken_again_a_few_times(failures: int, succeeds: bool) -> None:
    """Its memory may have gone with the relay that has just died."""
    tried: list[float] = []

    async def main(runtime: VirtualRuntime) -> None:
        scene = Scene(runtime, SimpleNamespace())

        async def take(receivers: object) -> Version:
            tried.append(runtime.clock.now())
            if len(tried) <= failures:
                raise WeightError("nothing was published there")
            return Version(0, 1)

        model = followed(scene, Receiver(1), take)
        if not succeeds:
            with pytest.raises(WeightError, match="nothing was published there"):
                await model.reach(1)
            return
        await model.reach(1)
        await model.reach(1)
        assert len(tried) == failures + 1, "it has it"
        assert all(
            tell == ("update_failed", {"version": "v1", "message": "proximal: nothing was published there"})
            for tell in scene.events
        )
        assert len(scene.events) == failures

    run_virtually(main)
    assert tried[-1] < 60, "whoever waits hears of a lasting fault soon"


class Offered:
    """The receiving end of one relay."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def offer(self) -> WeightOffer:
        return WeightOffer(self.version, "shm", "/relay", Manifest(self.version, ()))


def test_where_the_run_went_back_a_version_that_it_left_is_not_taken() -> None:
    """Commit 4 was the last, and version 7 is still at a relay that could not be reached."""

    async def main(runtime: VirtualRuntime) -> None:
        scene, ranks, published = Scene(runtime, SimpleNamespace()), [Offered(Version(0, 7)) for _ in "ab"], Signal()
        taken: list[Version] = []
        lineage = Lineage(0, {0: 2**62})
        lineage.go_back(Version(1, 4), {0: 4, 1: 2**62})

        async def take(receivers: Sequence[Offered]) -> Version:
            taken.extend(receiver.version for receiver in receivers)
            return taken[-1]

        model = followed(scene, ranks, take, published, lineage)
        reaching = asyncio.ensure_future(model.reach(4))
        for rank in ranks:
            await scene.settle()
            assert not reaching.done()
            assert not taken
            rank.version = Version(1, 4)
            published.notify()
        await reaching
        assert taken == [Version(1, 4)] * 2

    run_virtually(main)


def test_a_version_that_is_not_what_was_offered_is_taken_again() -> None:
    """It left between the look and the taking."""

    async def main(runtime: VirtualRuntime) -> None:
        scene, comes = Scene(runtime, SimpleNamespace()), [Version(0, 7), Version(1, 4)]
        lineage = Lineage(1, {0: 4, 1: 2**62})

        async def take(receivers: object) -> Version:
            return comes.pop(0)

        await followed(scene, Offered(Version(1, 4)), take, lineage=lineage).reach(4)
        assert not comes
        (event,) = scene.events
        assert event[1]["message"] == "proximal: v7 was taken, which is not v4 of this run, or newer"

    run_virtually(main)
