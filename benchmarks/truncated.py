"""What samples that a limit cut off should teach: `ppo` on the quickstart's task, where half of the answers do not fit.

    python -m benchmarks.truncated [--seeds 5] [--batches 80] [--jobs 2]

`rollout.sampling.max_new_tokens` is the median length of an answer that works its prompt out, over the prompts that are
trained on; held-out prompts are answered with room for all of them. So what is measured is what a policy learned where
answers were cut off, and not what it was kept from saying. Every run begins from the warmed-up model of its seed, as
the quickstart makes it. `uncut` is the same run with room for all answers in training too. Equal samples, not seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.staleness import run, warm_up
from headrace.cli.quickstart.sizes import SMALL
from headrace.cli.quickstart.task import Problem
from headrace.observe.record import BatchRecord

RULES = ("terminal", "bootstrap", "mask", "uncut")


def median_length(train: Path) -> int:
    """Tokens of the answer that works a prompt out, the end-of-sequence token included; a character is a token."""
    prompts = [json.loads(line)["prompt"] for line in train.read_text().splitlines()]
    problems = [Problem(tuple(map(int, prompt.rstrip("=").split("+")))) for prompt in prompts]
    return int(statistics.median(len(problem.working) + 1 for problem in problems))


def cut_off(batches: list[BatchRecord]) -> float:
    """Share of the samples."""
    return sum(batch.truncated_samples for batch in batches) / sum(batch.samples for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()

    def one(job: tuple[int, str]) -> dict[str, Any]:
        seed, rule = job
        files = warmed[seed]
        length = SMALL.max_response if rule == "uncut" else median_length(files.data / "train.jsonl")
        record = run(
            files,
            folder / f"{seed}-{rule}",
            "algorithm.recipe=ppo",
            f"algorithm.truncated={'terminal' if rule == 'uncut' else rule}",
            f"rollout.sampling.max_new_tokens={length}",
            f"evaluation.max_new_tokens={SMALL.max_response}",
            f"trainer.batches={args.batches}",
            "critic.optimizer.lr=1e-3",
            "evaluation.every=null",
            "runtime.threads=1",
        )
        batches, tenth = list(record.batches), max(args.batches // 10, 1)
        row = {
            "seed": seed,
            "truncated": rule,
            "max_new_tokens": length,
            "accuracy_before": record.evaluations[0].score,
            "accuracy_after": record.evaluations[-1].score,
            "response_tokens_after": record.evaluations[-1].response_tokens_mean,
            "reward_first": statistics.mean(batch.reward_mean for batch in batches[:tenth]),
            "reward_last": statistics.mean(batch.reward_mean for batch in batches[-tenth:]),
            "cut_off_first": cut_off(batches[:tenth]),
            "cut_off_last": cut_off(batches[-tenth:]),
            "critic_loss_last": batches[-1].critic_loss,
        }
        print(json.dumps(row), flush=True)
        return row

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(args.jobs) as pool:
        folder = Path(name)
        warmed = [warm_up(folder / str(seed), seed) for seed in range(args.seeds)]
        rows = list(pool.map(one, itertools.product(range(args.seeds), RULES)))
    measured = ("accuracy_before", "accuracy_after", "response_tokens_after", "reward_last", "cut_off_last")
    table = [
        {"truncated": rule, **{key: spread([row[key] for row in rows if row["truncated"] == rule]) for key in measured}}
        for rule in RULES
    ]
    save("truncated", {"seeds": args.seeds, "batches": args.batches, "table": table, "rows": rows})


if __name__ == "__main__":
    main()
