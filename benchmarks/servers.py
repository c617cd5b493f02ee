"""An inference server as an engine: its gap to the trainer, what new weights cost, and what a death costs.

    python -m benchmarks.servers [--kind vllm] [--python .venv-vllm/bin/python] [--dtypes float32 bfloat16]

The policy model of 4.98 M parameters (`benchmarks/policy_model.py`), on a server that is launched as a run launches it.
`gap`: |log-prob of the server - log-prob of the trainer's own forward in that dtype| of 4,096 sampled tokens, and the
importance weights that correct it. `pause`: seconds from the call for new weights to the first token sampled under
them, with 16 requests in flight, the swap check included. `death`: of two servers one is killed with its requests in
flight, both being warm; seconds until each of them gets its next token from the other, and until it serves again beside
what its first start took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.machine import save, spread
from benchmarks.policy_model import VOCABULARY, make_model
from headrace.engines.completions import Asked, stream
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import GenerateRequest, SamplingParams, SwapMode, TokenChunk
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits, ServerEngine
from headrace.engines.servers.launch import ServerLaunch
from headrace.models.loading import load_causal_lm
from headrace.roles.workers.server_engine import ServerEngineWorker, ServerSpec
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.workers import Placement
from headrace.training.frozen import FrozenScorer
from headrace.training.taking import scored
from headrace.weights.plane import WeightReceiver
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import LONG, check_tokens, make_check
from headrace.weights.version import INITIAL, Version

CONTEXT, SLOTS, IN_FLIGHT, REQUESTS = 1024, 32, 16, 8


def spec(kind: str, python: str, folder: Path, dtype: str, number: int = 0) -> ServerSpec:
    limits = Limits(SLOTS, CONTEXT, VOCABULARY, dtype)
    launch = ServerLaunch(
        python=os.path.abspath(python),
        weights=str(folder / "model"),
        dtype=dtype,
        slots=SLOTS,
        max_context=CONTEXT,
        seed=number,
        on_cpu=not torch.cuda.is_available(),
        threads=1,
        args={"skip_tokenizer_init": True} if kind == "vllm" else {},
    )
    log = str(folder / f"{kind}-{dtype}-{number}.log")
    return ServerSpec(kind, limits, Expected({"vocab_size": VOCABULARY}, CONTEXT, dtype), launch, log)


@asynccontextmanager
async def serving(*specs: ServerSpec) -> AsyncGenerator[list[ServerEngineWorker]]:
    runtime = InlineRuntime()
    try:
        workers = await runtime.start(ServerEngineWorker, list(specs), Placement(start_s=900.0))
        await workers.call("start", what="the servers", seconds=900.0)
        here = [workers.here(rank) for rank in range(len(specs))]
        yield [worker for worker in here if isinstance(worker, ServerEngineWorker)]
        await workers.close()
    finally:
        await runtime.close()


class Publications:
    """Versions of the model, each a little further from the first."""

    def __init__(self, folder: Path) -> None:
        (folder / "shm").mkdir(exist_ok=True)
        self._publisher = ShmPublisher(folder / "shm")
        self.model = load_causal_lm(str(folder / "model"), dtype=torch.float32, device="cpu")
        self._scorer = FrozenScorer(self.model, temperature=1.0)
        self._number = 0
        self._publish()

    def next(self) -> WeightReceiver:
        """Of the next version."""
        self._number += 1
        generator = torch.Generator().manual_seed(self._number)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1e-3 * torch.randn(parameter.shape, generator=generator))
        return self._publish()

    def _publish(self) -> WeightReceiver:
        check = make_check(
            check_tokens(VOCABULARY, LONG),
            partial(scored, self._scorer.logprobs),
            temperature=1.0,
            dtype="float32",
        )
        parameters = {name: value.detach() for name, value in self.model.named_parameters()}
        self._publisher.send(self._publisher.snapshot(Version(0, self._number), parameters.items(), check))
        return self._publisher.receiver()


def request(name: str, tokens: int, seed: int) -> GenerateRequest:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(2, VOCABULARY, int(rng.integers(8, 25))).astype(np.int32)
    return GenerateRequest(name, prompt, SamplingParams(max_new_tokens=tokens), noise_key=seed, stream=True)


async def gap(engine: ServerEngine, folder: Path, dtype: str) -> dict[str, Any]:
    async def sampled(number: int) -> tuple[np.ndarray, int, np.ndarray]:
        asked = request(f"gap-{number}", 64, number)
        chunks = [chunk async for chunk in engine.generate(asked)]
        tokens = np.concatenate([asked.prompt, *(chunk.tokens for chunk in chunks)]).astype(np.int32)
        return tokens, len(asked.prompt), np.concatenate([chunk.logprobs for chunk in chunks])

    rows = await asyncio.gather(*(sampled(number) for number in range(64)))
    model = load_causal_lm(str(folder / "model"), dtype=getattr(torch, dtype), device="cpu")
    apart = []
    for tokens, start, told in rows:
        ids = torch.from_numpy(tokens).long()
        with torch.no_grad():
            logits = model(ids[None]).logits[0].float()
        own = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None])[:, 0]
        apart.append(own.numpy()[start - 1 :] - told)
    every = np.concatenate(apart)
    weights = np.exp(every)
    return {
        "tokens": len(every),
        "mean": float(np.abs(every).mean()),
        "largest": float(np.abs(every).max()),
        "weights": [float(weights.min()), float(weights.mean()), float(weights.max())],
    }


async def pause(engine: ServerEngine, publish: Publications, mode: SwapMode, updates: int) -> dict[str, Any]:
    """Of each update, in seconds."""
    clock = engine._services.clock
    first: dict[int, float] = {}
    ended = False

    async def keep_asking(number: int) -> None:
        count = 0
        while not ended:
            count += 1
            async for chunk in engine.generate(request(f"{mode}-{number}-{count}", 400, 1000 * number + count)):
                for version in np.unique(chunk.versions).tolist():
                    first.setdefault(version, clock.now())

    asking = [asyncio.ensure_future(keep_asking(number)) for number in range(IN_FLIGHT)]
    taken = []
    for _ in range(updates):
        await clock.sleep(0.5)
        receiver = publish.next()
        version = receiver.latest()
        assert version is not None
        began = clock.now()
        await engine.update(receiver, mode)
        while version.number not in first:
            await clock.sleep(0.001)
        taken.append(first[version.number] - began)
    ended = True
    await asyncio.gather(*asking)
    return {**spread(taken[2:]), "first": taken[:2]}  # kernels are made ready in the first


async def death(
    workers: list[ServerEngineWorker], started_s: float, revive: Callable[[], Awaitable[ServerEngineWorker]]
) -> dict[str, Any]:
    clock = workers[0].engine._services.clock
    pool = EnginePool.of([worker.engine for worker in workers], clock)
    place = pool.admit(lambda number: True, 1)
    assert place is not None
    killed: list[float] = []
    after: list[float] = []
    other, generate = workers[1].engine, workers[1].engine.generate

    async def noted(asked: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        waits = True
        async with aclosing(generate(asked)) as chunks:
            async for chunk in chunks:
                if waits and len(chunk.tokens):
                    after.append(clock.now() - killed[0])
                    waits = False
                yield chunk

    async def read(number: int) -> None:
        asked = Asked(
            f"death-{number}", request("", 1, number).prompt, SamplingParams(max_new_tokens=900), number, INITIAL, place
        )
        async with aclosing(stream(pool, asked)) as chunks:
            async for _ in chunks:
                if len(after) == REQUESTS:
                    return

    for worker in workers:  # the first requests of a server are slow
        await asyncio.gather(*(_read(worker.engine, request(f"warm-{n}", 64, n)) for n in range(REQUESTS)))
    other.generate = noted  # type: ignore[method-assign, assignment]
    reading = [asyncio.ensure_future(read(number)) for number in range(REQUESTS)]
    await clock.sleep(1.0)
    below = psutil.Process().children(recursive=True)
    core = next(each for each in below if _is_core(each) and workers[0]._spec.log in _files(each))
    core.kill()
    killed.append(clock.now())
    await asyncio.gather(*reading)
    anew = await revive()
    serves_again = clock.now() - killed[0]
    await anew.close()
    return {
        "elsewhere": {**spread(after), "requests": len(after)},
        "serves_again": serves_again,
        "start": started_s,
    }


async def _read(engine: ServerEngine, asked: GenerateRequest) -> None:
    async for _ in engine.generate(asked):
        pass


def _is_core(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        words = " ".join([process.name(), *process.cmdline()])
        return "EngineCore" in words or "scheduler" in words
    return False


def _files(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error, OSError):
        return [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (1, 2)]
    return []


async def measure(kind: str, python: str, folder: Path, dtypes: list[str], updates: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in dtypes:
        async with serving(spec(kind, python, folder, dtype)) as (worker,):
            found[dtype] = {"server": worker.engine.dialect.name, "gap": await gap(worker.engine, folder, dtype)}
            if dtype == "float32":
                publish = Publications(folder)
                for mode in (SwapMode.RECOMPUTE, SwapMode.KEEP):
                    found[dtype][f"pause, {mode}"] = await pause(worker.engine, publish, mode, updates)
        print(json.dumps({dtype: found[dtype]}), flush=True)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with serving(spec(kind, python, folder, "float32")):
        started = loop.time() - began
    async with serving(*(spec(kind, python, folder, "float32", number) for number in range(2))) as workers:

        async def revive() -> ServerEngineWorker:
            await workers[0].close()
            anew = ServerEngineWorker(spec(kind, python, folder, "float32", 2), workers[0]._services)  # type: ignore[arg-type]
            await anew.start()
            return anew

        found["death"] = await death(workers, started, revive)
    print(json.dumps({"death": found["death"]}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--updates", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", eos_chance=0.0)
        found = asyncio.run(measure(given.kind, given.python, folder, given.dtypes, given.updates))
    save(f"servers_{given.kind}", found)


if __name__ == "__main__":
    main()
