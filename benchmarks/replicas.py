"""What the death of one of two engines costs the other: gaps in its decode steps.

    python -m benchmarks.replicas [--runs 4] [--batches 16] [--deaths 1]

GRPO with `engine.replicas: 2`, pairs of runs in turn: in one of each, the first engine is killed `--deaths` times,
three seconds apart. A gap is more than 0.1 s between two calls of the second engine's lane, but one of which half or
more went to new weights. Gaps in which no request was at hand are among them, in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.machine import save
from benchmarks.policy_model import make_model, make_prompts
from headrace.config import TrainConfig
from headrace.controller.building.wiring import Parts
from headrace.controller.outside import ThisMachine
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import train
from headrace.engines.remote import RemoteEngine

GAP_S, EVERY_S = 0.1, 3.0
LANE, SWAPS = "engine/1", "weights/1"


class Killing(ThisMachine):
    """Has the first engine die, again and again."""

    def __init__(self, kills: int) -> None:
        super().__init__()
        self.deaths = 0
        self._kills = kills

    def began(self, parts: Parts) -> None:
        """See `Outside.began`."""
        if self._kills:
            parts.context.runtime.spawn(self._kill(parts), "kills")

    async def _kill(self, parts: Parts) -> None:
        while self.deaths < self._kills:
            await parts.context.runtime.clock.sleep(EVERY_S)
            member = parts.models.engines.members[0]
            if member.lives and isinstance(member.engine, RemoteEngine):
                self.deaths += 1
                member.engine.kill("a fault of the benchmark")


def run(folder: Path, batches: int, kills: int) -> dict[str, float]:
    """Gaps a minute, deaths, and samples a second."""
    config = TrainConfig.model_validate(
        {
            "model": {"path": str(folder / "model")},
            "data": {"train": str(folder / "prompts.jsonl")},
            "reward": {"function": "benchmarks.rewards:reward"},
            "rollout": {
                "prompts_per_batch": 8,
                "samples_per_prompt": 8,
                "sampling": {"max_new_tokens": 64},
                "filters": [],
            },
            "trainer": {"batches": batches, "max_tokens_per_microbatch": 4096},
            "engine": {"max_concurrent_sequences": 32, "max_context": 96, "replicas": 2},
            "checkpoint": {"every": 1000},
            "runtime": {"threads": 2, "trace": True},
        }
    )
    outside = Killing(kills)
    out = folder / f"run-{kills}"
    asyncio.run(train(make_plan(config), out, "fresh", outside=outside))
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    spans = json.loads((out / "trace.json").read_text())["traceEvents"]
    names = {each["tid"]: each["args"]["name"] for each in spans if each.get("name") == "thread_name"}
    calls = sorted((each["ts"] / 1e6, each["dur"] / 1e6, each) for each in spans if each.get("ph") == "X")
    mine = [(ts, ts + dur) for ts, dur, each in calls if LANE in (each["name"], names.get(each["tid"]))]
    swaps = [(ts, ts + dur) for ts, dur, each in calls if SWAPS in (each["name"], names.get(each["tid"]))]
    gaps = [
        begin - end
        for (_, end), (begin, _) in pairwise(mine)
        if begin - end > GAP_S
        and sum(max(min(last, begin) - max(first, end), 0.0) for first, last in swaps) < (begin - end) / 2
    ]
    minutes = (mine[-1][1] - mine[0][0]) / 60
    return {
        "gaps_a_minute": len(gaps) / minutes,
        "gap_s_a_minute": sum(gaps) / minutes,
        "longest_s": max(gaps, default=0.0),
        "deaths": outside.deaths,
        "samples_per_s": summary["samples"]["trained"] / summary["wall_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--deaths", type=int, default=1)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "model", 0.0)
        for index in range(args.runs):
            found: dict[str, dict[str, float]] = {}
            for side in ("without", "with")[:: 1 if index % 2 else -1]:
                found[side] = run(folder, args.batches, args.deaths if side == "with" else 0)
            rows.append(found)
            print({side: {k: round(v, 2) for k, v in one.items()} for side, one in found.items()}, flush=True)
    medians = {
        side: {name: statistics.median(row[side][name] for row in rows) for name in ("gaps_a_minute", "gap_s_a_minute")}
        for side in ("without", "with")
    }
    for side, one in medians.items():
        print(f"{side} deaths: {one['gaps_a_minute']:.1f} gaps, {one['gap_s_a_minute']:.1f} s of them a minute")
    save("replicas", {"rows": rows, "medians": medians})


if __name__ == "__main__":
    main()
