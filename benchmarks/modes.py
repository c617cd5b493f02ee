"""Headrace's asynchronous mode against its own synchronous one: skewed lengths, the same total threads.

    python -m benchmarks.modes [--runs 5]

Also the fraction of the ideal: a run in which generation and training overlap perfectly takes as long as the slower
of the two alone, each with all threads. Those times are read off the synchronous runs, where the two take turns; as
are the largest difference of the trainer's log-probs from the engine's, which is free of staleness there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.end_to_end import EOS_CHANCE, THREADS, headrace_run
from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    ratios, fractions, mismatch = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "skewed", EOS_CHANCE["skewed"])
        for _ in range(args.runs):
            sync = headrace_run(folder, "skewed", "float32", 'async.mode="sync"')
            asynchronous = headrace_run(folder, "skewed", "float32")
            slower = max(sync["train_share"], sync["generate_share"])
            ratios.append(asynchronous["samples_per_s"] / sync["samples_per_s"])
            fractions.append(asynchronous["samples_per_s"] / (sync["samples_per_s"] / slower))
            mismatch.append(sync["mismatch_max_abs"])
            print(f"ratio {ratios[-1]:.2f}, of the ideal {fractions[-1]:.2f}", flush=True)
    result = {
        "runs": args.runs,
        "threads": THREADS,
        "lengths": "skewed",
        "dtype": "float32",
        "async_over_sync": spread(ratios),
        "fraction_of_ideal": spread(fractions),
        "on_policy_logprob_mismatch_max_abs": max(mismatch),
    }
    save("modes", result)


if __name__ == "__main__":
    main()
