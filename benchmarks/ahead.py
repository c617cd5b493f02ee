"""How far generation should run ahead of training: as far as the engine's slots have use for, or as the bound allows.

    python -m benchmarks.ahead [--seeds 3] [--batches 50] [--etas 2 8] [--workloads even "heavy tail" tools]
    python -m benchmarks.ahead --simulated

Two rules for `async.ahead`: `slots`, min((eta + 1) B, max(2 B, B + slots / samples a prompt)); `bound`, (eta + 1) B.
Three workloads with the model of `benchmarks.policy_model`: answers of 48 tokens, answers of log-normal length (mean
about 48, sigma 1, at most 512), and 48 tokens after a tool that takes its time (log-normal, half a second in the
middle), which is no work for the engine. The reward is the share of an answer's words that have an even number, which
answers of any length can learn; the policy never ends an answer itself, so that lengths do not depend on what it
learns. Runs go one at a time, since seconds are compared. The trainer's idle share is the actor's wait for rows, of the
time between the first and the last batch.

`--simulated` does the same in virtual time (`benchmarks.simulated`), where trainer and engine have devices of their own
and no figure depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts
from benchmarks.simulated import Circumstances, measures, run
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
SIMULATED_BATCH, SIMULATED_SLOTS, SIMULATED_BATCHES, SIMULATED_SEEDS = 16, 64, 50, range(3)
TAILS: dict[str, float | None] = {"even": None, "heavy tail": 1.0}
"""See `Circumstances.tail`."""
SIMULATED_KEYS = {"idle_share": ".0%", "staleness_mean": ".1f", "staleness_max": ".0f", "speed": ".2f"}
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
        "reward": {"function": "benchmarks.rewards:even_share"},
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


def simulated() -> None:
    table = []
    for lengths, tail in TAILS.items():
        for eta in (2, 8):
            for step in STEPS:
                for rule in RULES:
                    ahead = most_ahead(rule, eta, SIMULATED_BATCH, SIMULATED_SLOTS)
                    given = Circumstances(
                        batch=SIMULATED_BATCH,
                        samples=SAMPLES,
                        batches=SIMULATED_BATCHES,
                        max_staleness=eta,
                        on_deadline="wait",
                        ahead=ahead,
                        slots=SIMULATED_SLOTS,
                        tail=tail,
                        step_s=0.0,
                    )
                    batch_s = SIMULATED_BATCH * SAMPLES / SIMULATED_SLOTS * given.answer_s
                    given = replace(given, step_s=step * batch_s)
                    rows = [measures(given, run(given, seed)) for seed in SIMULATED_SEEDS]
                    found = {key: spread([row[key] for row in rows]) for key in SIMULATED_KEYS}
                    named = {"lengths": lengths, "max_staleness": eta, "step": step, "rule": rule, "ahead": ahead}
                    table.append({**named, **found})
    settings = {"prompts_per_batch": SIMULATED_BATCH, "samples_per_prompt": SAMPLES, "slots": SIMULATED_SLOTS}
    settings |= {"batches": SIMULATED_BATCHES, "seeds": len(SIMULATED_SEEDS)}
    save("ahead_simulated", {**settings, "table": table})
    print_table(table, SIMULATED_KEYS)


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
    parser.add_argument("--simulated", action="store_true")
    args = parser.parse_args()
    if args.simulated:
        simulated()
    else:
        study(args)


if __name__ == "__main__":
    main()
