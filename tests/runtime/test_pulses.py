"""A machine that falls silent is told from a worker whose event loop stands: this machine stands for another."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from runtime_worker_kinds import Probe, Spec

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import Placement, Silence, WorkerLost

_SILENT_S = 4.0
_THERE = "0f" * 28
_WHERE = Placement(process=True, deadline_s=60, silence=Silence(100.0, "rollout.block_timeout_s"))


def pulses_here() -> list[int]:
    """Processes of a Ray of this one."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(word.startswith("ray::Pulse") for word in each.cmdline()):
                found.append(each.pid)
    return found


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.usefixtures("one_ray")
def test_who_blocks_its_loop_stays_and_all_on_a_machine_that_is_silent_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that stands for twice as long as a machine may be silent, with Python's lock; an end of the pulse alone;
    then nothing there does anything any more, and no connection ends."""
    from headrace.runtime.ray import member, pulses
    from headrace.runtime.ray.cluster import RayCluster

    monkeypatch.setattr(member, "SILENT_S", _SILENT_S)
    monkeypatch.setattr(pulses, "here", lambda: "elsewhere")

    async def main() -> None:
        cluster = RayCluster("a test", packages=["runtime_worker_kinds"], near=False)
        runtime = InlineRuntime(apart=cluster, copying=False)
        stopped: list[int] = []
        try:
            probes = await runtime.start(Probe, [Spec("a"), Spec("b")], _WHERE)
            await until(lambda: len(pulses_here()) == 1)
            (pulse,) = pulses_here()
            await asyncio.sleep(1.0)
            await probes.call("block_loop", 2 * _SILENT_S, rank=0, what="what a user's code may do")
            os.kill(pulse, signal.SIGKILL)
            await until(lambda: pulse not in pulses_here() and len(pulses_here()) == 1)
            await asyncio.sleep(1.0)
            assert not probes.lost
            stopped += [*pulses_here(), *(await probes.call("pid", what="their processes"))]
            for each in stopped:
                os.kill(each, signal.SIGSTOP)
            began = time.monotonic()
            for rank in (0, 1):
                words = rf"probe/{rank} is lost: its machine has answered nothing for \d+ s"
                with pytest.raises(WorkerLost, match=words):
                    await probes.call("word", rank=rank, what="words")
            assert _SILENT_S - 1 < time.monotonic() - began < _SILENT_S + 4
        finally:
            for each in stopped:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGCONT)
            await runtime.close()
        await until(lambda: not pulses_here())

    asyncio.run(main())


class OneFails:
    """A Ray that cannot make the first actor; the next one answers once."""

    def __init__(self) -> None:
        self.made = 0
        self.beats = 0
        self.beat = SimpleNamespace(remote=self._answer)

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._make))

    def kill(self, actor: Any, no_restart: bool) -> None:
        pass

    def _make(self) -> OneFails:
        from ray.exceptions import RpcError

        self.made += 1
        if self.made == 1:
            raise RpcError("no answer")
        return self

    def _answer(self) -> asyncio.Future[None]:
        answer = asyncio.get_running_loop().create_future()
        self.beats += 1
        if self.beats == 1:
            answer.set_result(None)
        return answer


@pytest.mark.usefixtures("ray_imported")
def test_a_pulse_that_could_not_be_made_is_made_once_its_machine_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from headrace.runtime.ray import pulses

    ray = OneFails()
    monkeypatch.setattr(pulses, "ray", ray)
    monkeypatch.setattr(pulses, "here", lambda: "elsewhere")

    async def main(runtime: VirtualRuntime) -> None:
        watched = pulses.Pulses(runtime)
        for _ in range(20):
            watched.watch(_THERE)
            await runtime.clock.sleep(0.5)
        assert ray.made == 2
        silent = watched.silent_s(_THERE)
        await runtime.clock.sleep(30.0)
        assert 25.0 < watched.silent_s(_THERE) - silent <= 30.0
        await watched.close()

    run_virtually(main)
