"""What the death of an engine costs the other one, and of a trainer rank the run: `kill -9` in its midst.

    python -m benchmarks.recovery [--rounds 3] [--runtimes process ray] [--sides engine d2 t2]

GRPO of 5 M parameters in `async`, 16 x 8 responses of 64 tokens, each run a process of its own, on all cores. Sides:

`engine`: one of two embedded engines. `gap_s`: the longest time in which the other one had a request at hand and no
token came of it, from the kill until the first serves again; `gap_before_s`: the same, in the time before that.
`serves_s`: from the kill until it serves. `start_s`: what of this is its start, from when its process is begun until it
has taken the weights; `beyond_start_s`: the rest.

`d2`, `t2`: the second of two trainer ranks, of which each has the whole model (it is healed by the other), or a half
(all go on from the last commit). `micro_batch_s`: from the kill to the end of the first call with micro-batches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts
from headrace.config import TrainConfig
from headrace.controller.building.wiring import Parts
from headrace.controller.outside import ThisMachine
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import train
from headrace.engines.protocol import GenerateRequest, TokenChunk
from headrace.engines.remote import RemoteEngine
from headrace.runtime.refs import Ref
from headrace.training.group import TrainerGroup
from headrace.training.rows.packed_rows import RowToTrain

WARM_S, WAIT_S = 8.0, 300.0
CALLS = 12
"""Of the trainer, before its rank dies."""
TARGETS = {"gap_s": 2.0, "beyond_start_s": 5.0, "micro_batch_s": 20.0}


def kill(run: Path, worker: str) -> bool:
    """The process of a worker of this run, as engine-0: it prints to that log. Whether there is one."""
    log, found = str(run / "logs" / f"{worker}.log"), []
    for each in psutil.Process().children(recursive=True):
        try:
            if os.readlink(f"/proc/{each.pid}/fd/1") == log:
                found.append((each.create_time(), each.pid))
        except (OSError, psutil.Error):
            continue
    if found:
        os.kill(min(found)[1], signal.SIGKILL)  # others that have that log are its children
    return bool(found)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.005)


class Tokens:
    """When those of one engine came."""

    def __init__(self) -> None:
        self.count = 0
        self._at_hand = 0
        self._last = 0.0
        self._gaps: list[tuple[float, float]] = []
        """(when it ended, seconds)"""

    def asked(self) -> None:
        if not self._at_hand:
            self._last = time.monotonic()
        self._at_hand += 1

    def came(self, count: int) -> None:
        now = time.monotonic()
        self._gaps.append((now, now - self._last))
        self._last = now
        self.count += count

    def ended(self) -> None:
        self._at_hand -= 1

    def longest_gap(self, begin: float, end: float) -> float:
        """Of those that ended between, or have not."""
        still = [min(time.monotonic(), end) - self._last] if self._at_hand else []
        return max([seconds for at, seconds in self._gaps if begin < at <= end] + still, default=0.0)


class Killing(ThisMachine):
    """Has one die once the run is under way, and the run stop once the death is over."""

    def __init__(self, run: Path) -> None:
        super().__init__()
        self.found: dict[str, float] = {}
        self._run = run
        self._parts: Parts | None = None
        self._tokens: defaultdict[int, Tokens] = defaultdict(Tokens)
        self._calls = 0
        self._killed = 0.0

    def began(self, parts: Parts) -> None:
        """See `Outside.began`; where all go back, the run begins once more."""
        self._parts = parts

    async def engine(self) -> None:
        """Has the first engine die."""
        await until(lambda: self._parts is not None)
        assert self._parts is not None
        await asyncio.sleep(WARM_S)
        await until(lambda: all(self._tokens[rank].count > 1_000 for rank in (0, 1)))
        member = self._parts.models.engines.members[0]
        revive, started = member.revive, []
        assert revive is not None

        async def timed(*args: Any) -> Any:
            began = time.monotonic()
            engine = await revive(*args)
            started.append(time.monotonic() - began)
            return engine

        member.revive = timed
        before, other = self._tokens[0].count, self._tokens[1]
        killed = time.monotonic()
        if not kill(self._run, "engine-0"):
            raise RuntimeError("the first engine has no process")
        await until(lambda: bool(started) and member.lives)
        serves = time.monotonic()
        await until(lambda: self._tokens[0].count > before)
        self.found = {
            "gap_s": other.longest_gap(killed, serves),
            "gap_before_s": other.longest_gap(killed - WARM_S, killed),
            "serves_s": serves - killed,
            "start_s": started[-1],
            "beyond_start_s": serves - killed - started[-1],
            "first_token_s": time.monotonic() - killed,
        }
        self._parts.stop()

    async def generate(
        self, generate: Any, engine: RemoteEngine, request: GenerateRequest
    ) -> AsyncGenerator[TokenChunk, None]:
        """What the engine's own gives."""
        tokens = self._tokens[engine.rank]
        tokens.asked()
        try:
            async with aclosing(generate(engine, request)) as chunks:
                async for chunk in chunks:
                    tokens.came(len(chunk.tokens))
                    yield chunk
        finally:
            tokens.ended()

    async def accumulate(
        self, accumulate: Any, group: TrainerGroup, micros: Sequence[Sequence[RowToTrain]], *more: Any
    ) -> Sequence[Ref]:
        """The group's own; at one of them the second rank dies."""
        self._calls += 1
        if self._calls >= CALLS and not self._killed and kill(self._run, "trainer-1"):
            self._killed = time.monotonic()
        refs: Sequence[Ref] = await accumulate(group, micros, *more)
        if self._killed and not self.found:
            self.found = {"micro_batch_s": time.monotonic() - self._killed}
            assert self._parts is not None
            self._parts.stop()
        return refs


def once(folder: Path, runtime: str, side: str) -> dict[str, float]:
    """One run."""
    config = TrainConfig.model_validate(
        {
            "model": {"path": str(folder / "model")},
            "data": {"train": str(folder / "prompts.jsonl")},
            "reward": {"function": "benchmarks.rewards:reward"},
            "rollout": {
                "prompts_per_batch": 16,
                "samples_per_prompt": 8,
                "sampling": {"max_new_tokens": 64},
                "filters": [],
            },
            "async": {"max_staleness": 4},
            "trainer": {
                "batches": 100_000,
                "max_tokens_per_microbatch": 2048,
                "placement": "process",
                "layout": "d1" if side == "engine" else side,
            },
            "engine": {
                "max_concurrent_sequences": 64,
                "max_context": 96,
                "process": True,
                "replicas": 2 if side == "engine" else 1,
            },
            "checkpoint": {"every": 1},
            "runtime": {"kind": runtime} if runtime == "ray" else {},
        }
    )
    run = folder / f"{runtime}-{side}"
    plan, killing = make_plan(config), Killing(run)
    generate, accumulate = RemoteEngine.generate, TrainerGroup.accumulate

    async def whole() -> None:
        watching = asyncio.ensure_future(killing.engine()) if side == "engine" else None
        training = asyncio.ensure_future(train(plan, run, "fresh", outside=killing))
        try:
            await asyncio.wait(
                [training, *([watching] if watching else [])], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if watching is not None:
                watching.cancel()
                await asyncio.wait([watching])
                if not watching.cancelled():
                    watching.result()
            await asyncio.wait_for(training, WAIT_S)
        finally:
            training.cancel()
            await asyncio.wait([training])

    with (
        patch.object(RemoteEngine, "generate", lambda engine, request: killing.generate(generate, engine, request)),
        patch.object(TrainerGroup, "accumulate", lambda *args: killing.accumulate(accumulate, *args)),
    ):
        asyncio.run(whole())
    if not killing.found:
        raise RuntimeError("the run ended before the death was over")
    return killing.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtimes", nargs="+", choices=["process", "ray"], default=["process", "ray"])
    parser.add_argument("--sides", nargs="+", choices=["engine", "d2", "t2"], default=["engine", "d2", "t2"])
    parser.add_argument("--once", type=Path, help="one run in this folder, of the first runtime and side")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.once, given.runtimes[0], given.sides[0])))
        return
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(given.rounds):
        for runtime in given.runtimes:
            for side in given.sides:
                with tempfile.TemporaryDirectory() as name:
                    make_prompts(Path(name) / "prompts.jsonl")
                    make_model(Path(name) / "model", 0.0)
                    command = [sys.executable, "-m", "benchmarks.recovery", "--once", name]
                    line = [*command, "--runtimes", runtime, "--sides", side]
                    made = subprocess.run(line, capture_output=True, text=True, timeout=3 * WAIT_S, check=False)
                if made.returncode:
                    raise RuntimeError(made.stdout[-2000:] + made.stderr[-2000:])
                row: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
                print(runtime, side, {key: round(value, 2) for key, value in row.items()}, flush=True)
                rows = found.setdefault(f"{runtime} {side}", {})
                for key, value in row.items():
                    rows.setdefault(key, []).append(value)
    result = {name: {key: spread(values) for key, values in rows.items()} for name, rows in found.items()}
    for name, spreads in result.items():
        for key in TARGETS.keys() & spreads.keys():
            print(f"{name}: {key} {spreads[key]['median']:.2f} of at most {TARGETS[key]:g}")
    save("recovery", {"rounds": given.rounds, "targets": TARGETS, **result})


if __name__ == "__main__":
    main()
