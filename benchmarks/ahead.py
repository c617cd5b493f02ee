"""How far generation should run ahead of training: as far as the engine's slots have use for, or as the bound allows.

    python -m benchmarks.ahead [--seeds 3] [--batches 50] [--etas 2 8] [--workloads even "heavy tail" tools]
    python -m benchmarks.ahead --world

Two rules for `async.ahead`: `slots`, min((eta + 1) B, max(2 B, B + slots / samples a prompt)); `bound`, (eta + 1) B.
Three workloads with the model of `benchmarks.policy_model`: answers of 48 tokens, answers of log-normal length (mean
about 48, sigma 1, at most 512), and 48 tokens after a tool that takes its time (log-normal, half a second in the
middle), which is no work for the engine. The reward is the share of an answer's words that have an even number, which
answers of any length can learn; the policy never ends an answer itself, so that lengths do not depend on what it
learns. Runs go one at a time, since seconds are compared. The trainer's idle share is the actor's wait for rows, of the
time between the first and the last batch.

`--world` does the same in the discrete-event world of `benchmarks.schedule_world`, where trainer and engine have
devices of their own and no figure depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts
from benchmarks.schedule_world import World, WorldRun
from benchmarks.slow_workflow import LONGEST
from benchmarks.staleness import rewards_in_time, run_config
from headrace.observe.run_record import RunRecord

B, SAMPLES, SLOTS, LR, TOKENS = 8, 8, 16, 1e-4, 48
"""With so few slots, generation takes about as long as training, on a CPU."""
RULES = ("slots", "bound")
_WORKFLOWS = Path(__file__).parent / "slow_workflow.py"
WORKLOADS: dict[str, dict[str, Any]] = {
    "even": {},
    "heavy tail": {"max_new_tokens": LONGEST, "workflow": f"{_WORKFLOWS}:DrawnLength"},
    "tools": {"workflow": f"{_WORKFLOWS}:SlowerTool"},
}
WORLD_BATCH, WORLD_SLOTS, WORLD_BATCHES, WORLD_SEEDS = 16, 64, 80, range(5)
TAILS = {"even": 0.0, "heavy tail": 1.0}
"""Sigma of the log-normal time of a sample."""
STEPS = (0.8, 1.0, 1.25)
"""A step's time over that in which the engine, its slots full, decodes a batch."""


def most_ahead(rule: str, eta: int, batch: int, slots: int) -> int:
    bound = (eta + 1) * batch
    return bound if rule == "bound" else min(bound, max(2 * batch, batch + math.ceil(slots / SAMPLES)))


def prepare(folder: Path) -> None:
    """Model and prompts."""
    make_prompts(folder / "prompts.jsonl")
    make_model(folder / "model", eos_chance=0.0)


def write_config(folder: Path, workload: str, batches: int) -> Path:
    """The run's config. JSON, which YAML contains."""
    chosen = WORKLOADS[workload]
    longest = chosen.get("max_new_tokens", TOKENS)
    path = folder / f"{workload.replace(' ', '-')}.yaml"
    config = {
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "prompts.jsonl")},
        "reward": {"function": "benchmarks.policy_model:even_share"},
        "rollout": {
            "prompts_per_batch": B,
            "samples_per_prompt": SAMPLES,
            "sampling": {"max_new_tokens": longest},
            "workflow": chosen.get("workflow", "single_turn"),
            "filters": [],
        },
        "trainer": {"batches": batches, "optimizer": {"lr": LR}, "max_tokens_per_microbatch": 4096},
        "engine": {"max_concurrent_sequences": SLOTS, "max_context": longest + 32},
        "checkpoint": {"every": 1000},
    }
    path.write_text(json.dumps(config))
    return path


def describe(record: RunRecord) -> dict[str, float]:
    """Of one run, its first batch aside: no run can have rows for that one."""
    first, last = record.batches[0].totals, record.batches[-1].totals
    seconds = last.elapsed_s - first.elapsed_s
    waited = [totals.wait_s.get("actor: rows of the batch", 0.0) for totals in (first, last)]
    tokens = sum(sum(batch.staleness.values()) for batch in record.batches)
    stale = sum(age * count for batch in record.batches for age, count in batch.staleness.items())
    return {
        "seconds": last.elapsed_s,
        "idle_share": (waited[1] - waited[0]) / seconds,
        "staleness_mean": stale / max(tokens, 1),
        "staleness_max": max(max(batch.staleness) for batch in record.batches if batch.staleness),
        "reward_last": statistics.mean(batch.reward_mean for batch in record.batches[-5:]),
        "length_mean": statistics.mean(batch.response_tokens_mean for batch in record.batches),
    }


def study(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for workload in args.workloads:
            config = write_config(folder, workload, args.batches)
            for eta in args.etas:
                for seed in range(args.seeds):
                    rows += rounds(config, folder, workload, eta, seed)
    keys = {"idle_share": ".0%", "staleness_mean": ".1f", "staleness_max": ".0f"}
    keys |= {"reward_in_time": ".3f", "seconds": ".0f"}
    table = [
        {
            "lengths": workload,
            "max_staleness": eta,
            "rule": rule,
            "ahead": most_ahead(rule, eta, B, SLOTS),
            **{key: spread([row[key] for row in chosen]) for key in keys},
        }
        for workload in args.workloads
        for eta in args.etas
        for rule in RULES
        if (chosen := [r for r in rows if (r["lengths"], r["max_staleness"], r["rule"]) == (workload, eta, rule)])
    ]
    settings = {"prompts_per_batch": B, "samples_per_prompt": SAMPLES, "slots": SLOTS, "lr": LR}
    save("ahead", {**settings, "seeds": args.seeds, "batches": args.batches, "table": table, "rows": rows})
    print_table(table, keys)


def rounds(config: Path, folder: Path, workload: str, eta: int, seed: int) -> list[dict[str, Any]]:
    """A row for each rule, run in turn."""
    records = {
        rule: run_config(
            config,
            folder / f"{config.stem}-{eta}-{seed}-{rule}",
            f"async.max_staleness={eta}",
            f"async.ahead={most_ahead(rule, eta, B, SLOTS)}",
            f"seed={seed}",
        )
        for rule in RULES
    }
    in_time = rewards_in_time(records)
    rows = [
        {
            "lengths": workload,
            "max_staleness": eta,
            "seed": seed,
            "rule": rule,
            "reward_in_time": in_time[rule],
            **describe(record),
        }
        for rule, record in records.items()
    ]
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def world() -> None:
    table = []
    for lengths, tail in TAILS.items():
        mean = math.exp(tail**2 / 2)
        batch_time = WORLD_BATCH * SAMPLES / WORLD_SLOTS * mean
        for eta in (2, 8):
            for step in STEPS:
                for rule in RULES:
                    runs = []
                    for seed in WORLD_SEEDS:
                        circumstances = World(
                            prompts_per_batch=WORLD_BATCH,
                            max_staleness=eta,
                            total_batches=WORLD_BATCHES,
                            on_deadline="wait",
                            prompts=100_000,
                            ahead=most_ahead(rule, eta, WORLD_BATCH, WORLD_SLOTS),
                            slots=WORLD_SLOTS,
                            samples=SAMPLES,
                            tail=tail,
                            step_time=step * batch_time,
                            load_time=0.02 * mean,
                            seed=seed,
                        )
                        outcome = WorldRun(circumstances).run()
                        assert outcome.finished
                        runs.append(
                            {
                                "idle_share": outcome.trainer_idle / outcome.time,
                                "staleness_mean": outcome.mean_staleness,
                                "staleness_max": outcome.worst_staleness,
                                "speed": WORLD_BATCHES * batch_time * max(step, 1.0) / outcome.time,
                            }
                        )
                    table.append(
                        {
                            "lengths": lengths,
                            "max_staleness": eta,
                            "step": step,
                            "rule": rule,
                            "ahead": most_ahead(rule, eta, WORLD_BATCH, WORLD_SLOTS),
                            **{key: spread([run[key] for run in runs]) for key in runs[0]},
                        }
                    )
    settings = {"prompts_per_batch": WORLD_BATCH, "samples_per_prompt": SAMPLES, "slots": WORLD_SLOTS}
    save("ahead_world", {**settings, "batches": WORLD_BATCHES, "seeds": len(WORLD_SEEDS), "table": table})
    print_table(table, {"idle_share": ".0%", "staleness_mean": ".1f", "staleness_max": ".0f", "speed": ".2f"})


def print_table(table: list[dict[str, Any]], keys: dict[str, str]) -> None:
    """As Markdown, a line for both rules: medians, that of `slots` first. `keys`: what is shown, with its format."""
    names = [name for name in ("lengths", "max_staleness", "step") if name in table[0]]
    print("| " + " | ".join((*names, "ahead", *keys)) + " |")
    print("|---" * (len(names) + 1 + len(keys)) + "|")
    for pair in zip(table[:: len(RULES)], table[1 :: len(RULES)], strict=True):
        cells = [f"{pair[0][name]}" for name in names]
        cells.append(" / ".join(str(row["ahead"]) for row in pair))
        cells += [" / ".join(format(row[key]["median"], shown) for row in pair) for key, shown in keys.items()]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--etas", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--world", action="store_true")
    args = parser.parse_args()
    if args.world:
        world()
    else:
        study(args)


if __name__ == "__main__":
    main()
