"""Headrace's asynchronous mode against its own synchronous one: skewed lengths, the same total threads.

    python -m benchmarks.modes [--runs 5]

Two workloads: that of `end_to_end` (geometric lengths, the mean about a fifth of the longest), in which training takes
about half of the time, and one with a heavy tail (one prompt in eight is hard and takes up to 512 tokens, the others
about 13). Timed in the steady state of each run.

Also the fraction of the ideal: a run in which generation and training overlap perfectly takes as long as the slower
of the two alone, each with all threads. Those times are read off the synchronous runs, where the two take turns. On a
CPU that ideal is out of reach, since the two share the processors that each is given whole there. From the synchronous
runs comes also the largest difference of the trainer's log-probs from the engine's, which is free of staleness there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import EOS_CHANCE, MAX_NEW_TOKENS, THREADS, headrace_run
from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

HARD_EVERY, EASY_EOS, HARD_EOS, HARD_MAX = 8, 1 / 16, 1 / 128, 512
HEAVY = (f'rollout.sampling={{"max_new_tokens": {HARD_MAX}}}', f"engine.max_context={HARD_MAX + 32}")
WORKLOADS: dict[str, tuple[str, ...]] = {"skewed": (), "heavy tail": HEAVY}
DEADLINES = ("mask", "wait")


def compare(folder: Path, lengths: str, runs: int) -> list[dict[str, Any]]:
    """A row for each `on_deadline` of the asynchronous side."""
    fixed = WORKLOADS[lengths]
    ratios: dict[str, list[float]] = {rule: [] for rule in DEADLINES}
    fractions: dict[str, list[float]] = {rule: [] for rule in DEADLINES}
    masked: dict[str, list[float]] = {rule: [] for rule in DEADLINES}
    means, mismatch = [], []
    for _ in range(runs):
        sync = headrace_run(folder, lengths, "float32", 'async.mode="sync"', *fixed)
        slower = max(sync["train_share"], sync["generate_share"])
        means.append(sync["mean_length"])
        mismatch.append(sync["mismatch_max_abs"])
        for rule in DEADLINES:
            other = headrace_run(folder, lengths, "float32", f'async.on_deadline="{rule}"', *fixed)
            ratios[rule].append(other["samples_per_s"] / sync["samples_per_s"])
            fractions[rule].append(ratios[rule][-1] * slower)
            masked[rule].append(other["masked_share"])
        print(lengths, {rule: round(values[-1], 2) for rule, values in ratios.items()}, flush=True)
    return [
        {
            "lengths": lengths,
            "mean_over_longest": sum(means) / len(means) / (HARD_MAX if fixed else MAX_NEW_TOKENS),
            "on_deadline": rule,
            "async_over_sync": spread(ratios[rule]),
            "fraction_of_ideal": spread(fractions[rule]),
            "masked_share": spread(masked[rule]),
            "on_policy_logprob_mismatch_max_abs": max(mismatch),
        }
        for rule in DEADLINES
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        plain, heavy = Path(name) / "plain", Path(name) / "heavy"
        for folder in (plain, heavy):
            folder.mkdir()
        make_prompts(plain / "prompts.jsonl")
        make_model(plain / "skewed", EOS_CHANCE["skewed"])
        make_prompts(heavy / "prompts.jsonl", HARD_EVERY)
        make_model(heavy / "heavy tail", EASY_EOS, HARD_EOS)
        rows = compare(plain, "skewed", args.runs) + compare(heavy, "heavy tail", args.runs)
    save("modes", {"runs": args.runs, "threads": THREADS, "dtype": "float32", "rows": rows})


if __name__ == "__main__":
    main()
