"""Virtual time: waits cost none, calls cost what they are charged, and a seed fixes the order of everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.virtual import Deadlock, Livelock, VirtualRuntime, run_virtually


def test_a_day_passes_at_once_and_timers_end_in_their_order() -> None:
    async def main(runtime: VirtualRuntime) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def nap(name: str, seconds: float) -> None:
            await runtime.clock.sleep(seconds)
            seen.append((name, runtime.clock.now()))

        await asyncio.gather(nap("day", 86_400.0), nap("second", 1.0), nap("hour", 3600.0), nap("also", 1.0))
        return seen

    began = time.monotonic()
    assert run_virtually(main) == [("second", 1.0), ("also", 1.0), ("hour", 3600.0), ("day", 86_400.0)]
    assert time.monotonic() - began < 5


def test_a_wait_reaches_its_deadline() -> None:
    async def main(runtime: VirtualRuntime) -> float:
        with pytest.raises(WaitTimeout, match=r"waited 30\.0 s for a letter; giving up") as raised:
            await runtime.clock.wait_for(asyncio.get_running_loop().create_future(), 30.0, "a letter")
        assert raised.value.so_far == "has waited 30.0 s for a letter", "the words of whoever goes on"
        return runtime.clock.now()

    assert run_virtually(main) == 30.0


def test_when_everybody_waits_for_ever_it_is_told() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        await runtime.clock.sleep(2.5)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"at 2\.500000 s every task waits"):
        run_virtually(main)


def test_an_instant_that_does_not_end_is_told() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        while True:  # noqa: ASYNC110 (this is the fault)
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match=r"more than 100000 callbacks at 0\.000000 s"):
        run_virtually(main)


def test_a_lane_takes_one_call_after_another_each_as_long_as_it_is_charged() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        done: list[tuple[str, float]] = []

        def work(name: str, seconds: float) -> str:
            runtime.charge(seconds)
            return name

        async def call(lane: str, name: str, seconds: float) -> None:
            done.append((await runtime.compute(lane, work, name, seconds), runtime.clock.now()))

        await asyncio.gather(call("a", "first", 3.0), call("a", "second", 1.0), call("b", "beside", 2.0))
        assert done == [("beside", 2.0), ("first", 3.0), ("second", 4.0)]
        assert runtime.busy_s == {"a": 4.0, "b": 2.0}

        late = asyncio.ensure_future(call("a", "left", 5.0))
        await runtime.clock.sleep(1.0)
        late.cancel()
        await call("a", "after", 1.0)
        assert done[3:] == [("after", 10.0)], "work that has begun runs to its end"
        with pytest.raises(ZeroDivisionError):
            await runtime.compute("a", lambda: 1 // 0)
        await runtime.close()
        with pytest.raises(RuntimeError, match="closed"):
            await runtime.compute("a", work, "", 0.0)

    run_virtually(main)


def test_nothing_real_runs_under_it() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        for real in (
            lambda: asyncio.to_thread(print),
            lambda: asyncio.open_connection("127.0.0.1", 1),
            lambda: asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0),
            lambda: asyncio.create_subprocess_exec("true"),
        ):
            with pytest.raises(RuntimeError, match="would take real time"):
                await real()

    run_virtually(main)


SCENE = """
import asyncio, hashlib, sys
import numpy as np
from headrace.runtime.signal import Signal
from headrace.runtime.together import together
from headrace.runtime.virtual import run_virtually

ballast = [object() for _ in range(int(sys.argv[1]))]  # so that addresses differ
del ballast[::2]

async def main(runtime):
    random, told, signal = np.random.default_rng(7), [], Signal()

    def tell(*words):
        told.append(f"{runtime.clock.now():.9f} {words}")

    async def worker(number):
        try:
            for turn in range(20):
                await runtime.clock.sleep(float(random.choice([0.0, 0.25, 1.0])))
                await runtime.compute(f"lane {number % 3}", runtime.charge, float(random.random()))
                tell("turn", number, turn)
                signal.notify()
                if number == 17 and turn == 9:
                    raise ValueError("stop")
        finally:
            tell("end", number)

    async def listener(number):
        try:
            while True:
                await signal.wait(runtime.clock, 3.0, "a turn")
                tell("heard", number)
        finally:
            tell("end of listener", number)

    try:
        await together([*(worker(number) for number in range(40)), *(listener(number) for number in range(9))])
    except ValueError as error:
        tell(str(error))
    print(hashlib.sha256("\\n".join(told).encode()).hexdigest(), len(told))

run_virtually(main)
"""


def test_two_processes_do_the_same_in_the_same_order(tmp_path: Path) -> None:
    """With other hash seeds, and other addresses."""
    (tmp_path / "scene.py").write_text(SCENE)
    said = [
        subprocess.run(
            [sys.executable, str(tmp_path / "scene.py"), ballast],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed, ballast in (("1", "0"), ("2", "100001"), ("3", "77"))
    ]
    assert said[0] == said[1] == said[2]
    assert int(said[0].split()[1]) > 500
