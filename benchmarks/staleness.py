"""What staleness costs: naive PPO against the decoupled objective with behaviour weights, on the quickstart's task.

    python -m benchmarks.staleness [--seeds 5] [--etas 0 1 2 4 8] [--updates 4] [--lr 5e-5]

Every run begins from the same warmed-up model of its seed and sees the same number of samples, with several optimiser
steps per batch (with one the clip is inert). eta 0 is the synchronous mode; the others run as far ahead as eta lets
them, so that trained tokens are about eta versions old. With `--deadlines`, the rules for a group that is due are
compared instead, at eta 2, with answers whose time has a heavy tail: at equal samples, and in equal time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, save, spread
from headrace.cli.quickstart.materials import QuickstartFiles, make_inputs
from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.store import RunReader

PROMPTS_PER_BATCH, CURVE_POINTS = 16, 10
OBJECTIVES = ("decoupled", "naive")
RULES = ("wait", "mask", "late")


def warm_up(folder: Path, seed: int) -> QuickstartFiles:
    files = make_inputs(folder, seed)
    _headrace("sft", str(files.sft_config), "--dir", str(folder / "sft"))
    return files


def run(files: QuickstartFiles, folder: Path, *overrides: str) -> RunRecord:
    return run_config(files.grpo_config, folder, *overrides)


def run_config(config: Path, folder: Path, *overrides: str) -> RunRecord:
    _headrace("train", str(config), *overrides, "--dir", str(folder), "--plain")
    with RunReader(folder) as reader:
        return RunWatcher(reader).read()


def _headrace(*arguments: str) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])


def overrides(args: argparse.Namespace, eta: int, objective: str) -> list[str]:
    ahead = (eta + 1) * PROMPTS_PER_BATCH
    mode = (
        ["async.mode=sync", "async.max_staleness=0"]
        if eta == 0
        else [f"async.max_staleness={eta}", f"async.ahead={ahead}"]
    )
    return [
        *mode,
        f"algorithm.objective={objective}",
        f"algorithm.updates_per_batch={args.updates}",
        f"trainer.optimizer.lr={args.lr}",
        f"trainer.batches={args.batches}",
        # The engine must be well faster than the trainer, or tokens would be fresher than the bound lets them be.
        "engine.max_concurrent_sequences=256",
        "evaluation.every=null",
        "checkpoint.every=1000",
    ]


def describe(record: RunRecord) -> dict[str, Any]:
    """One run: held-out accuracy at its end, its reward in parts of equal samples, and how stale it was."""
    batches = record.batches
    part = max(len(batches) // CURVE_POINTS, 1)
    tokens = sum(count for batch in batches for count in batch.staleness.values())
    stale = sum(age * count for batch in batches for age, count in batch.staleness.items())
    return {
        "accuracy": record.evaluations[-1].score,
        "reward": [
            round(statistics.mean(batch.reward_mean for batch in batches[i : i + part]), 4)
            for i in range(0, len(batches), part)
        ],
        "staleness_mean": stale / max(tokens, 1),
        "masked_share": sum(batch.masked_tokens for batch in batches)
        / max(tokens + sum(batch.masked_tokens for batch in batches), 1),
        "clip_fraction": statistics.mean(batch.clip_fraction for batch in batches),
        "seconds": _seconds(record),
    }


def study(args: argparse.Namespace) -> None:
    def one(job: tuple[int, int, str]) -> dict[str, Any]:
        seed, eta, objective = job
        folder = Path(name) / f"{seed}-{eta}-{objective}"
        record = run(warmed[seed], folder, *overrides(args, eta, objective), "runtime.threads=1")
        row = {"seed": seed, "eta": eta, "objective": objective, **describe(record)}
        print(json.dumps(row), flush=True)
        return row

    # Equal samples are compared, not seconds: a thread for each run, and several runs side by side.
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(args.jobs) as pool:
        warmed = [warm_up(Path(name) / str(seed), seed) for seed in range(args.seeds)]
        rows = list(pool.map(one, itertools.product(range(args.seeds), args.etas, OBJECTIVES)))
    table = [
        {
            "eta": eta,
            "objective": objective,
            "accuracy": spread([row["accuracy"] for row in chosen]),
            "mean_reward": spread([statistics.mean(row["reward"]) for row in chosen]),
            "last_reward": spread([statistics.mean(row["reward"][-2:]) for row in chosen]),
            "staleness_mean": statistics.mean(row["staleness_mean"] for row in chosen),
        }
        for eta in args.etas
        for objective in OBJECTIVES
        if (chosen := [row for row in rows if (row["eta"], row["objective"]) == (eta, objective)])
    ]
    settings = {"seeds": args.seeds, "updates_per_batch": args.updates, "lr": args.lr, "batches": args.batches}
    save("staleness", {**settings, "table": table, "rows": rows})
    draw(rows, args.etas, RESULTS / "staleness.png")


def deadlines(args: argparse.Namespace) -> None:
    """One run at a time, since seconds are compared; the times of answers have a heavy tail."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for seed in range(args.seeds):
            files = warm_up(Path(name) / str(seed), seed)
            records = {}
            for rule in RULES:
                rules = [
                    *overrides(args, 2, "decoupled"),
                    f"async.on_deadline={rule}",
                    f"rollout.workflow={Path(__file__).parent / 'slow_workflow.py'}:SlowTool",
                ]
                records[rule] = run(files, Path(name) / f"{seed}-{rule}", *rules)
            in_time = rewards_in_time(records)
            for rule, record in records.items():
                rows.append({"seed": seed, "on_deadline": rule, **describe(record), "reward_in_time": in_time[rule]})
                print(json.dumps(rows[-1]), flush=True)
    table = [
        {
            "on_deadline": rule,
            "accuracy": spread([row["accuracy"] for row in chosen]),
            "mean_reward": spread([statistics.mean(row["reward"]) for row in chosen]),
            "mean_reward_in_the_time_of_the_first_to_end": spread([row["reward_in_time"] for row in chosen]),
            "seconds": spread([row["seconds"] for row in chosen]),
            "masked_share": spread([row["masked_share"] for row in chosen]),
        }
        for rule in RULES
        if (chosen := [row for row in rows if row["on_deadline"] == rule])
    ]
    settings = {"seeds": args.seeds, "updates_per_batch": args.updates, "lr": args.lr, "batches": args.batches}
    save("deadlines", {**settings, "table": table, "rows": rows})


def rewards_in_time(records: dict[str, RunRecord]) -> dict[str, float]:
    """The mean reward of each run's batches up to the time when the first of the runs ended, its first one at least."""
    first = min(_seconds(record) for record in records.values())

    def in_time(record: RunRecord) -> float:
        chosen = [batch.reward_mean for batch in record.batches if batch.totals.elapsed_s <= first]
        return statistics.mean(chosen or [record.batches[0].reward_mean])

    return {name: in_time(record) for name, record in records.items()}


def _seconds(record: RunRecord) -> float:
    return record.batches[-1].totals.elapsed_s


def draw(rows: list[dict[str, Any]], etas: list[int], path: Path) -> None:
    """Reward over samples, a panel for each objective, a line for each eta: the mean over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(OBJECTIVES), figsize=(9, 3.2), layout="constrained", sharey=True)
    for panel, objective in zip(panels, OBJECTIVES, strict=True):
        for place, eta in enumerate(etas):
            curves = [row["reward"] for row in rows if (row["eta"], row["objective"]) == (eta, objective)]
            mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
            panel.plot(mean, color=plt.get_cmap("viridis")(place / max(len(etas) - 1, 1)), label=f"staleness ≤ {eta}")
        panel.set(title=objective, xlabel=f"samples (1/{CURVE_POINTS} of the run)")
    panels[0].set(ylabel="reward")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--etas", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--lr", default="5e-5")
    parser.add_argument("--batches", type=int, help="80 unless given; with --deadlines 50")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--deadlines", action="store_true")
    args = parser.parse_args()
    args.batches = args.batches or (50 if args.deadlines else 80)
    (deadlines if args.deadlines else study)(args)


if __name__ == "__main__":
    main()
