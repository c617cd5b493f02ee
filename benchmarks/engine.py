"""Tokens per second of the embedded engine, against Hugging Face `generate` and vLLM's CPU build; cost of weight swaps.

    python -m benchmarks.engine [--vllm-python PATH] [--runs 5]

The sides take turns in one call, each in a process of its own: the same model, prompts, dtype and two threads, 64
sequences at once, temperature 1. The engine and vLLM report the log-prob of each sampled token, `generate` is spared
that. Lengths are even (128 tokens each), or skewed: every token ends its sequence with chance 1/32, at most 128, 256
requests. `generate` works them off in batches of 64, the others continuously. The interpreter that has vLLM is given
by its path, so that its dependencies stay out of this environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import GenerationConfig

from benchmarks.machine import save, spread
from benchmarks.policy_model import EOS, VOCABULARY, make_model
from headrace.config import EngineConfig
from headrace.controller.building.threads import inline_runtime
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import GenerateRequest, SamplingParams, SwapMode, TokenChunk
from headrace.models.loading import load_causal_lm
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.version import Version

T = TypeVar("T")
THREADS = 2
SETTLE_S = 0.5
"""Between turns: the threads of the side before spin for a while."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What all sides generate."""

    concurrent: int
    """Sequences at once."""
    prompt: int
    max_new_tokens: int
    stops: tuple[int, ...] = (EOS,)

    @property
    def context(self) -> int:
        return self.prompt + self.max_new_tokens

    def prompts(self, count: int, vocabulary: int = VOCABULARY) -> np.ndarray:
        return np.random.default_rng(0).integers(2, vocabulary, (count, self.prompt)).astype(np.int32)


SMALL = Workload(concurrent=64, prompt=16, max_new_tokens=128)
REQUESTS = {"even": SMALL.concurrent, "skewed": 4 * SMALL.concurrent}
EOS_CHANCE = {"even": 0.0, "skewed": 1 / 32}
DTYPES = ("float32", "bfloat16")


class HuggingFaceSide:
    """`generate` in batches of as many as run at once."""

    def __init__(self, folder: Path, dtype: str, prompts: np.ndarray, load: Workload) -> None:
        torch.set_num_threads(THREADS)
        self._prompts, self._load = prompts, load
        self._model: Any = load_causal_lm(folder, dtype=getattr(torch, dtype), device="cpu")
        self._config = GenerationConfig(
            max_new_tokens=load.max_new_tokens,
            do_sample=True,
            top_k=0,
            eos_token_id=[*load.stops] or None,
            pad_token_id=1,
        )
        if not load.stops:
            self._model.generation_config.eos_token_id = None

    def tokens(self) -> int:
        """Generates once; how many tokens."""
        count = 0
        at_once = self._load.concurrent
        for start in range(0, len(self._prompts), at_once):
            ids = torch.from_numpy(self._prompts[start : start + at_once].astype(np.int64)).to(self._model.device)
            whole = self._model.generate(ids, generation_config=self._config, attention_mask=torch.ones_like(ids))
            ends = torch.isin(whole[:, self._load.prompt :], torch.tensor(self._load.stops, dtype=torch.long)).int()
            count += int((ends.cumsum(1) - ends == 0).sum())
        return count


class OwnSide:
    """The engine behind its asyncio front, in a loop of its own."""

    def __init__(self, folder: Path, dtype: str, prompts: np.ndarray, load: Workload) -> None:
        self._prompts, self._load = prompts, load
        self._loop = asyncio.Runner()
        self._runtime = inline_runtime(THREADS)
        model = load_causal_lm(folder, dtype=getattr(torch, dtype), device="cpu")
        self.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        config = EngineConfig(max_concurrent_sequences=load.concurrent, max_context=load.context)
        self.engine = EmbeddedEngine(model, config=config, runtime=self._runtime)
        self._loop.run(self.engine.start())
        self._runs = 0

    def tokens(self) -> int:
        """Generates once; how many tokens."""
        return sum(len(chunk.tokens) for chunk in self.generate())

    def generate(self) -> list[TokenChunk]:
        async def everyone() -> list[TokenChunk]:
            return await asyncio.gather(*(self._one(i) for i in range(len(self._prompts))))

        self._runs += 1
        return self._loop.run(everyone())

    def swap(self, mode: SwapMode, number: int) -> dict[str, float]:
        """One update in the middle of an even run."""

        async def run() -> dict[str, float]:
            before = self.engine.stats()
            tasks = [asyncio.create_task(self._one(i)) for i in range(len(self._prompts))]
            publisher = MemoryPublisher()
            await self._runtime.compute("weights", publisher.publish, Version(0, number), self.parameters.items())
            await self._runtime.clock.sleep(0.3)
            report = await self.engine.update(publisher.receiver(), mode)
            await asyncio.gather(*tasks)
            after = self.engine.stats()
            assert report is not None
            computed = after.busy_s - before.busy_s - report.prefill_s
            return {
                "decode_step_s": computed / (after.decode_steps - before.decode_steps),
                "flip_s": report.flip_s,
                "prefill_s": report.prefill_s,
                "recomputed_tokens": report.recomputed_tokens,
                "interrupted": report.interrupted,
            }

        self._runs += 1
        return self._loop.run(run())

    def compute(self, work: Callable[..., T], *args: Any) -> T:
        """Call it on the thread that the engine computes on, with as many threads."""
        return self._loop.run(self._runtime.compute("engine", work, *args))

    def close(self) -> None:
        async def end() -> None:
            await self.engine.stop()
            await self._runtime.close()

        self._loop.run(end())
        self._loop.close()

    async def _one(self, index: int) -> TokenChunk:
        sampling = SamplingParams(self._load.max_new_tokens, stop_token_ids=self._load.stops)
        key = self._runs * 1_000_003 + index
        request = GenerateRequest(f"{self._runs}.{index}", self._prompts[index], sampling, key)
        return [chunk async for chunk in self.engine.generate(request)][-1]


class Child:
    """A side in a process of its own: generates once for each line that it gets."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._arguments = arguments
        self._answer()

    def tokens_per_s(self) -> float:
        time.sleep(SETTLE_S)
        assert self._child.stdin is not None
        self._child.stdin.write("go\n")
        self._child.stdin.flush()
        tokens, seconds = self._answer()
        return float(tokens / seconds)

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)

    def _answer(self) -> Any:
        """The next JSON line: vLLM prints other lines too."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(("[", '"')):
                return json.loads(line)
        raise RuntimeError(f"a side ended before it answered; run it by hand to see why: {self._arguments[:4]}")


def start_side(
    name: str, folder: Path, dtype: str, prompts: np.ndarray, load: Workload, vllm_python: str | None
) -> Child:
    job = {
        "side": name,
        "model": str(folder),
        "dtype": dtype,
        "context": load.context,
        **asdict(load),
        "prompts": prompts.tolist(),
    }
    if name != "vllm":
        return Child([sys.executable, "-m", "benchmarks.engine", "--side", json.dumps(job)], dict(os.environ))
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(THREADS),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    script = Path(__file__).parent / "peers" / "vllm_generate.py"
    return Child([str(vllm_python), str(script), json.dumps(job)], environment)


def serve_side(job: dict[str, Any]) -> None:
    """The child of `start_side`, for our own side and for `generate`."""
    kind = OwnSide if job["side"] == "headrace" else HuggingFaceSide
    load = Workload(job["concurrent"], job["prompt"], job["max_new_tokens"], tuple(job["stops"]))
    side = kind(Path(job["model"]), job["dtype"], np.array(job["prompts"], dtype=np.int32), load)
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        count = side.tokens()
        print(json.dumps([count, time.perf_counter() - begin]), flush=True)
    if isinstance(side, OwnSide):
        side.close()


def compare(
    folder: Path, dtype: str, prompts: np.ndarray, load: Workload, runs: int, vllm_python: str | None
) -> dict[str, Any]:
    """Tokens a second of all sides: one round of warm-up, then `runs` rounds in which they take turns."""
    names = ["headrace", "generate"] + (["vllm"] if vllm_python else [])
    sides = {name: start_side(name, folder, dtype, prompts, load, vllm_python) for name in names}
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(runs + 1):
        for name, side in sides.items():
            speed = side.tokens_per_s()
            if round_:
                speeds[name].append(speed)
    for side in sides.values():
        side.close()
    row: dict[str, Any] = {"dtype": dtype}
    row["tokens_per_s"] = {name: spread(values) for name, values in speeds.items()}
    for name in names[1:]:
        ratios = [a / b for a, b in zip(speeds["headrace"], speeds[name], strict=True)]
        row[f"ratio_to_{name}"] = spread(ratios)
    print(folder.name, dtype, {name: round(statistics.median(v)) for name, v in speeds.items()}, flush=True)
    return row


def swaps(folder: Path, dtype: str, runs: int) -> list[dict[str, Any]]:
    """What an update costs while 64 sequences run; seconds as medians, with a decode step's own time beside."""
    own = OwnSide(folder / "even", dtype, SMALL.prompts(SMALL.concurrent), SMALL)
    own.tokens()
    rows, number = [], 0
    for mode in (SwapMode.KEEP, SwapMode.RECOMPUTE):
        costs = []
        for _ in range(runs):
            number += 1
            costs.append(own.swap(mode, number))
        row: dict[str, Any] = {key: statistics.median(cost[key] for cost in costs) for key in costs[0]}
        row |= {"mode": str(mode), "dtype": dtype, "flip_in_decode_steps": row["flip_s"] / row["decode_step_s"]}
        print(row, flush=True)
        rows.append(row)
    own.close()
    return rows


def logprob_error(folder: Path) -> float:
    """Greatest |engine - Hugging Face forward pass| over the tokens of one even float32 run."""
    prompts = SMALL.prompts(SMALL.concurrent)
    own = OwnSide(folder / "even", "float32", prompts, SMALL)
    chunks = own.generate()
    own.close()
    model = load_causal_lm(folder / "even", dtype=torch.float32, device="cpu")
    tokens = torch.from_numpy(np.stack([c.tokens for c in chunks]).astype(np.int64))
    whole = torch.cat([torch.from_numpy(prompts.astype(np.int64)), tokens], dim=1)
    with torch.no_grad():
        logprobs = model(whole, use_cache=False).logits[:, SMALL.prompt - 1 : -1].log_softmax(-1)
    chosen = logprobs.gather(2, tokens[..., None])[..., 0].numpy()
    return float(np.abs(chosen - np.stack([c.logprobs for c in chunks])).max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm-python", default=os.environ.get("HEADRACE_VLLM_PYTHON"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--side", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve_side(args.side)
        return
    torch.set_num_threads(1)  # a team of threads of this one's own would slow down the engine's
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for lengths, chance in EOS_CHANCE.items():
            make_model(folder / lengths, chance)
        result = {
            "concurrent": SMALL.concurrent,
            "max_new_tokens": SMALL.max_new_tokens,
            "threads": THREADS,
            "runs": args.runs,
            "rows": [
                {"lengths": lengths}
                | compare(folder / lengths, dtype, SMALL.prompts(count), SMALL, args.runs, args.vllm_python)
                for lengths, count in REQUESTS.items()
                for dtype in DTYPES
            ],
            "swaps": [row for dtype in DTYPES for row in swaps(folder, dtype, args.runs)],
            "logprob_max_abs_error_float32": logprob_error(folder),
        }
    print("log-prob error", result["logprob_max_abs_error_float32"])
    save("engine", result)


if __name__ == "__main__":
    main()
