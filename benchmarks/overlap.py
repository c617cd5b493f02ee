"""A step of PPO with its roles at the same time, against the same stages one after another.

    python -m benchmarks.overlap [--runs 5]

Same model, prompts and threads; `runtime.turns` has everything that computes take turns. The ideal: of the time in
turns, what the busiest lane computes (a lane for each of engine, actor, reference, proximal, critic), which is what a
step would take if no lane shared its processors with another.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import EOS_CHANCE, THREADS, headrace_run
from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

PPO = ('algorithm={"recipe": "ppo", "updates_per_batch": 2}', 'proximal.placement="own"')


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    ratios, ideals = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "skewed", EOS_CHANCE["skewed"])
        for _ in range(args.runs):
            traced = (*PPO, "runtime.trace=true")
            turns: dict[str, Any] = headrace_run(folder, "skewed", "float32", *traced, "runtime.turns=true")
            beside = headrace_run(folder, "skewed", "float32", *traced)
            ratios.append(beside["samples_per_s"] / turns["samples_per_s"])
            ideals.append(1 / max(turns["lane_shares"].values()))
            print(json.dumps({"ratio": ratios[-1], "ideal": ideals[-1], "lanes": turns["lane_shares"]}), flush=True)
    result = {"concurrent_over_turns": spread(ratios), "ideal": spread(ideals)}
    save("overlap", {"runs": args.runs, "threads": THREADS, **result})


if __name__ == "__main__":
    main()
