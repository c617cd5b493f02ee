"""Each recipe on the quickstart's task: held-out accuracy before and after, at equal samples.

    python -m benchmarks.recipes [--seeds 3] [--recipes ppo grpo …]

Every run begins from the warmed-up model of its seed, as the quickstart makes it, and runs asynchronously with
staleness at most 2. `opd` learns from the model that `grpo` left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import typing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.staleness import run, warm_up
from headrace.config.algorithm import RecipeName

BATCHES = 80


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", default=list(typing.get_args(RecipeName)))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()

    def one(job: tuple[int, str]) -> dict[str, Any]:
        seed, recipe = job
        overrides = [
            f"algorithm.recipe={recipe}",
            f"algorithm.objective={'naive' if recipe == 'm2po' else 'decoupled'}",
            f"trainer.batches={BATCHES}",
            "critic.optimizer.lr=1e-3",
            "evaluation.every=null",
            "runtime.threads=1",
        ]
        if recipe == "opd":
            overrides.append(f"teacher.model={folder / f'{seed}-grpo' / 'checkpoints' / f'step_{BATCHES}' / 'model'}")
        record = run(warmed[seed], folder / f"{seed}-{recipe}", *overrides)
        before, after = record.evaluations[0], record.evaluations[-1]
        row = {
            "seed": seed,
            "recipe": recipe,
            "accuracy_before": before.score,
            "accuracy_after": after.score,
            "reward_last": record.batches[-1].reward_mean,
            "critic_loss_last": record.batches[-1].critic_loss,
            "staleness_max": max(max(batch.staleness) for batch in record.batches),
        }
        print(json.dumps(row), flush=True)
        return row

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(args.jobs) as pool:
        folder = Path(name)
        warmed = [warm_up(folder / str(seed), seed) for seed in range(args.seeds)]
        first = [recipe for recipe in args.recipes if recipe != "opd"]
        rows = list(pool.map(one, itertools.product(range(args.seeds), first)))
        if "opd" in args.recipes:
            rows += pool.map(one, [(seed, "opd") for seed in range(args.seeds)])
    table = [
        {
            "recipe": recipe,
            **{
                key: spread([row[key] for row in rows if row["recipe"] == recipe])
                for key in ("accuracy_before", "accuracy_after")
            },
        }
        for recipe in args.recipes
    ]
    save("recipes", {"seeds": args.seeds, "batches": BATCHES, "table": table, "rows": rows})


if __name__ == "__main__":
    main()
