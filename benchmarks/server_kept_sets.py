"""What kept sets cost with an inference server: tokens a second under top-p 0.9, of a vocabulary of 32,000.

    python -m benchmarks.server_kept_sets [--kind vllm] [--python .venv-vllm/bin/python] [--rounds 5]

Sides in turn on one server, on the same prompts and lengths: `whole`, sampled from the whole vocabulary; and for top-k
512 and 64 `cut`, sampled under truncation without the sets, and `kept`, with them, as a run gets them (of vLLM by the
log-probs of the top-k + 16 likeliest ids of each token, of SGLang by its own mask). The model is that of
`benchmarks.kept_sets`, whose head gives sets of some 30 ids. `wire_bytes`: what the server sends for a token.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kept_sets import VOCABULARY, make_model
from benchmarks.machine import save, spread
from benchmarks.servers import CONTEXT, serving, spec
from headrace.engines.protocol import GenerateRequest, SamplingParams
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import ServerEngine
from headrace.roles.workers.server_engine import ServerSpec

PROMPT, TOP_P, TOP_K = 32, 0.9, (512, 64)
SIDES: dict[str, dict[str, Any]] = {
    "whole": {},
    **{f"{side}_{k}": {"top_p": TOP_P, "top_k": k} for k in TOP_K for side in ("cut", "kept")},
}


def truncating(kind: str, python: str, folder: Path) -> ServerSpec:
    """A server as a run launches it whose config has the largest `top_k` of them."""
    plain = spec(kind, python, folder, "float32")
    assert plain.launch is not None
    return replace(
        plain,
        limits=replace(plain.limits, vocab_size=VOCABULARY),
        expected=Expected({"vocab_size": VOCABULARY}, CONTEXT, "float32", truncates=True, most_kept=max(TOP_K)),
        launch=replace(plain.launch, top_k=max(TOP_K)),
    )


class Wire:
    """Counts what a server sends of its streams."""

    def __init__(self, engine: ServerEngine) -> None:
        self.read = 0
        http = engine.dialect._http  # type: ignore[attr-defined]
        events = http.events

        async def counted(*args: Any, **named: Any) -> AsyncGenerator[Any]:
            async for event in events(*args, **named):
                self.read += len(str(event))
                yield event

        http.events = counted


async def generate(engine: ServerEngine, side: str, samples: int, new_tokens: int) -> list[int]:
    """Sizes of the kept sets."""
    sampling = SamplingParams(max_new_tokens=new_tokens, **SIDES[side])
    rng = np.random.default_rng(0)
    sizes: list[int] = []

    async def row(number: int) -> None:
        prompt = rng.integers(0, VOCABULARY, PROMPT).astype(np.int32)
        asked = GenerateRequest(f"{side}-{number}", prompt, sampling, number, return_kept="kept" in side, stream=True)
        async for chunk in engine.generate(asked):
            if chunk.kept is not None:
                sizes.extend(chunk.kept.counts.tolist())

    await asyncio.gather(*(row(number) for number in range(samples)))
    return sizes


async def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    wire: dict[str, float] = {}
    sizes: list[int] = []
    async with serving(truncating(given.kind, given.python, folder)) as (worker,):
        server = worker.engine.dialect.name
        counted = Wire(worker.engine)
        for turn in range(given.rounds + 1):
            for side in SIDES:
                before, began = counted.read, time.perf_counter()
                sizes = await generate(worker.engine, side, given.samples, given.new_tokens) or sizes
                taken = time.perf_counter() - began
                tokens = given.samples * given.new_tokens
                wire[side] = (counted.read - before) / tokens
                if turn:  # the first is a warm-up
                    rates[side].append(tokens / taken)
    found: dict[str, Any] = {"server": server, "tokens_per_s": {side: spread(each) for side, each in rates.items()}}
    for k in TOP_K:
        for other in (f"cut_{k}", "whole"):
            of = [a / b for a, b in zip(rates[f"kept_{k}"], rates[other], strict=True)]
            found[f"kept_{k}_over_{other}"] = spread(of)
    found["wire_bytes"] = wire
    found["set_size"] = {"mean": float(np.mean(sizes)), "largest": max(sizes)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(hidden=256, layers=6, scale=16.0).save_pretrained(folder / "model")
        found = asyncio.run(measure(given, folder))
    print(found)
    told = {name: getattr(given, name) for name in ("samples", "new_tokens", "rounds")}
    save(f"server_kept_sets_{given.kind}", {**told, **found})


if __name__ == "__main__":
    main()
