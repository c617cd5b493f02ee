"""What the death of an inference server costs a whole run, by the run's own events: `kill -9` of what computes in it.

    python -m benchmarks.server_recovery [--kind vllm] [--python .venv-vllm/bin/python] [--rounds 3]

GRPO of 5 M parameters in `async`, 4 x 8 responses of 256 tokens, 64 of them at work on two servers that the run
launches, of which each could decode as many at once; each round is a run and a process of its own, on all cores.
Seconds from the kill of the first server's core: `died_s` to the event `engine_died`; `elsewhere_s`, `last_elsewhere_s`
until the requests that it had get their next token, half of them and all; `back_s` to the event `engine_back`;
`first_token_s` to its first token. `start_s`: what of `back_s` is the start of the worker and the server made anew,
beside all else, until it has the newest weights; `beyond_start_s`: the rest. `benchmarks.servers` measures the same at
the engine's worker, without a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import psutil

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts
from benchmarks.recovery import WAIT_S, WARM_S, until
from headrace.config import TrainConfig
from headrace.controller.building.wiring import Parts
from headrace.controller.outside import ThisMachine
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import train
from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk
from headrace.engines.remote import RemoteEngine
from headrace.store import RunReader

TARGETS = {"last_elsewhere_s": 2.0, "beyond_start_s": 5.0}
AT_HAND = 8
"""Requests that the server has, at least, when it dies."""
CORES = ("EngineCore", "scheduler")
ARGS = {"vllm": {"skip_tokenizer_init": True}}


def core_of(worker: str) -> psutil.Process:
    """What computes in the server of this worker of this run, as engine/0."""
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(word.endswith(worker) for word in each.cmdline()):
                for below in each.children(recursive=True):
                    if any(name in " ".join([below.name(), *below.cmdline()]) for name in CORES):
                        return below
    raise RuntimeError(f"{worker} has no server")


class Killing(ThisMachine):
    """Has the first server's core die once the run is under way, and the run stop once that is over."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, float] = {}
        self.killed_at = 0.0
        """Seconds since the epoch."""
        self._parts: Parts | None = None
        self._killed = 0.0
        self._tokens: Counter[int] = Counter()
        self._at_hand: defaultdict[int, dict[str, str]] = defaultdict(dict)
        """Requests, by engine and by what stays the same wherever one goes on."""
        self._lost: dict[str, str] = {}
        self._elsewhere: list[float] = []

    def began(self, parts: Parts) -> None:
        """See `Outside.began`."""
        self._parts = parts

    async def kill(self) -> None:
        await until(lambda: self._parts is not None)
        assert self._parts is not None
        await asyncio.sleep(WARM_S)
        await until(lambda: all(self._tokens[rank] > 1_000 for rank in (0, 1)))
        core = core_of("engine/0")
        await until(lambda: len(self._at_hand[0]) >= AT_HAND)
        with self._timed_start() as starts:
            self._lost = dict(self._at_hand[0])
            self.killed_at, self._killed = time.time(), time.monotonic()
            core.kill()
            await until(lambda: bool(starts) and not self._lost)
            before = self._tokens[0]
            await until(lambda: self._tokens[0] > before)
        self.found = {
            "requests": len(self._elsewhere),
            "elsewhere_s": median(self._elsewhere),
            "last_elsewhere_s": max(self._elsewhere),
            "first_token_s": time.monotonic() - self._killed,
            "start_s": starts[-1],
        }
        self._parts.stop()

    @contextmanager
    def _timed_start(self) -> Iterator[list[float]]:
        """Of the engine that comes in the place of the first one."""
        assert self._parts is not None
        member, starts = self._parts.models.engines.members[0], list[float]()
        revive = member.revive
        assert revive is not None

        async def timed(*args: Any) -> Any:
            began = time.monotonic()
            engine = await revive(*args)
            starts.append(time.monotonic() - began)
            return engine

        member.revive = timed
        yield starts
        member.revive = revive

    async def generate(
        self, generate: Any, engine: RemoteEngine, request: GenerateRequest
    ) -> AsyncGenerator[TokenChunk, None]:
        """What the engine's own gives."""
        name = request.request_id.rpartition(".")[0]
        self._at_hand[engine.rank][name] = request.request_id
        try:
            async with aclosing(generate(engine, request)) as chunks:
                async for chunk in chunks:
                    self._came(engine.rank, name, request.request_id, chunk)
                    yield chunk
        finally:
            self._at_hand[engine.rank].pop(name, None)

    def _came(self, rank: int, name: str, request_id: str, chunk: TokenChunk) -> None:
        tokens, lost = len(chunk.tokens), self._lost.get(name)
        if lost == request_id and chunk.finish_reason not in (None, FinishReason.INTERRUPTED):
            del self._lost[name]  # its end was on its way
        elif lost not in (None, request_id) and tokens:
            del self._lost[name]
            self._elsewhere.append(time.monotonic() - self._killed)
        self._tokens[rank] += tokens


def once(folder: Path, kind: str, python: str) -> dict[str, float]:
    """One run."""
    config = TrainConfig.model_validate(
        {
            "model": {"path": str(folder / "model")},
            "data": {"train": str(folder / "prompts.jsonl")},
            "reward": {"function": "benchmarks.rewards:reward"},
            "rollout": {
                "prompts_per_batch": 4,
                "samples_per_prompt": 8,
                "sampling": {"max_new_tokens": 256},
                "filters": [],
            },
            "async": {"max_staleness": 4, "ahead": 8},
            "trainer": {"batches": 100_000, "max_tokens_per_microbatch": 2048},
            "engine": {
                "kind": kind,
                "python": os.path.abspath(python),
                "replicas": 2,
                "max_concurrent_sequences": 64,
                "max_context": 288,
                "args": ARGS.get(kind, {}),
                "start_deadline_s": 240,
            },
        }
    )
    plan, killing, run = make_plan(config), Killing(), folder / "run"
    generate = RemoteEngine.generate

    async def whole() -> None:
        watching = asyncio.ensure_future(killing.kill())
        training = asyncio.ensure_future(train(plan, run, "fresh", outside=killing))
        try:
            await asyncio.wait([training, watching], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()
            await asyncio.wait_for(training, WAIT_S)
        finally:
            training.cancel()
            await asyncio.wait([training])

    with patch.object(RemoteEngine, "generate", lambda engine, request: killing.generate(generate, engine, request)):
        asyncio.run(whole())
    if not killing.found:
        raise RuntimeError("the run ended before the death was over")
    return {**killing.found, **told(run, killing.killed_at, killing.found["start_s"])}


def told(run: Path, killed_at: float, start_s: float) -> dict[str, float]:
    """By the run's events."""
    with RunReader(run) as reader:
        events = [event for event in reader.events.read() if event.at >= killed_at and event.data.get("engine") == 0]
    died, back = (next(event.at for event in events if event.kind == kind) for kind in ("engine_died", "engine_back"))
    return {
        "died_s": died - killed_at,
        "back_s": back - killed_at,
        "beyond_start_s": back - killed_at - start_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="vllm", choices=["vllm", "sglang"])
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", type=Path, help="one run in this folder")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.once, given.kind, given.python)))
        return
    rows: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as name:
            make_prompts(Path(name) / "prompts.jsonl")
            make_model(Path(name) / "model", 0.0)
            command = [sys.executable, "-m", "benchmarks.server_recovery", "--once", name]
            line = [*command, "--kind", given.kind, "--python", given.python]
            made = subprocess.run(line, capture_output=True, text=True, timeout=3 * WAIT_S, check=False)
        if made.returncode:
            raise RuntimeError(made.stdout[-2000:] + made.stderr[-2000:])
        row: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
        print(given.kind, {key: round(value, 2) for key, value in row.items()}, flush=True)
        for key, value in row.items():
            rows.setdefault(key, []).append(value)
    spreads = {key: spread(values) for key, values in rows.items()}
    for key, most in TARGETS.items():
        print(f"{given.kind}: {key} {spreads[key]['median']:.2f} of at most {most:g}")
    save(f"server_recovery_{given.kind}", {"rounds": given.rounds, "targets": TARGETS, **spreads})


if __name__ == "__main__":
    main()
