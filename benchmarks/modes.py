"""Headrace's asynchronous mode against its own synchronous one: skewed lengths, the same total threads.

    python -m benchmarks.modes [--runs 5]

Also the fraction of the ideal: a run in which generation and training overlap perfectly takes as long as the slower
of the two alone, each with all threads. Those times are read off the synchronous runs, where the two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.end_to_end import EOS_CHANCE, THREADS, headrace_run
from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "skewed", EOS_CHANCE["skewed"])
        for dtype in ("float32", "bfloat16"):
            ratios, fractions = [], []
            for _ in range(args.runs):
                sync = headrace_run(folder, "skewed", dtype, 'async.mode="sync"')
                asynchronous = headrace_run(folder, "skewed", dtype)
                slower = max(sync["train_share"], sync["generate_share"])
                ratios.append(asynchronous["samples_per_s"] / sync["samples_per_s"])
                fractions.append(asynchronous["samples_per_s"] / (sync["samples_per_s"] / slower))
                print(dtype, f"ratio {ratios[-1]:.2f}, of the ideal {fractions[-1]:.2f}", flush=True)
            rows.append({"dtype": dtype, "async_over_sync": spread(ratios), "fraction_of_ideal": spread(fractions)})
            print(dtype, statistics.median(ratios))
    save("modes", {"runs": args.runs, "threads": THREADS, "lengths": "skewed", "rows": rows})


if __name__ == "__main__":
    main()
