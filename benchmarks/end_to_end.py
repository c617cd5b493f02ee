"""Samples per second of whole GRPO steps: Headrace against TRL, and Headrace's modes against each other.

    python -m benchmarks.end_to_end --trl-python PATH [--runs 5]

Both sides: the same model, prompts, group size, length limit, optimiser settings and reward, on the CPU with the same
number of threads. Runs alternate; a run's figure is taken over its timed steps, after warm-up steps. The interpreter
that has TRL is given by its path, so that its dependencies stay out of this environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

PROMPTS_PER_BATCH, SAMPLES_PER_PROMPT, MAX_NEW_TOKENS, LR = 8, 8, 128, 1e-6
TRL_WARM_UP, TRL_STEPS = 2, 4
WARM_UP, STEPS, COOL_DOWN, THREADS = 4, 8, 4, 2
"""Batches of ours. A run begins with batches that wait for generation, and ends with batches beside which nothing is
generated: neither is timed."""
DTYPES = ("float32", "bfloat16")
OWN = {
    "headrace": (),
    "headrace apart": ('trainer.placement="process"', "runtime.threads=1", "reward.trusted=true"),
}
"""As it comes; and as it is fastest here: the trainer in a process of its own, where each side has one thread, so that
neither waits for the other's interpreter, and the reward without a sandbox, as TRL has it."""
EOS_CHANCE = {"even": 0.0, "skewed": 1 / 32}


def headrace_run(folder: Path, lengths: str, dtype: str, *overrides: str, timeout_s: float = 900) -> dict[str, Any]:
    """One run in a process of its own; seconds for each timed batch and what it recorded."""
    arguments = [sys.executable, "-m", "benchmarks.end_to_end", "--own", str(folder / lengths), "--dtype", dtype]
    out = subprocess.run([*arguments, *overrides], capture_output=True, text=True, timeout=timeout_s, check=False)
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    return json.loads(out.stdout.splitlines()[-1])


def own(model: Path, dtype: str, overrides: list[str]) -> None:
    """The child of `headrace_run`."""
    from headrace.config import TrainConfig
    from headrace.controller.planning.plan import make_plan
    from headrace.controller.train import train
    from headrace.observe.listeners import Listeners
    from headrace.observe.record import BatchRecord
    from headrace.sandbox.descendants import descendants
    from headrace.sandbox.tree import computed_s_by

    raw: dict[str, Any] = {
        "model": {"path": str(model), "dtype": dtype},
        "data": {"train": str(model.parent / "prompts.jsonl")},
        "reward": {"function": "benchmarks.rewards:reward"},
        "rollout": {
            "prompts_per_batch": PROMPTS_PER_BATCH,
            "samples_per_prompt": SAMPLES_PER_PROMPT,
            "sampling": {"max_new_tokens": MAX_NEW_TOKENS},
            "filters": [],
        },
        "trainer": {"batches": WARM_UP + STEPS + COOL_DOWN, "optimizer": {"lr": LR}, "max_tokens_per_microbatch": 4096},
        "engine": {"max_concurrent_sequences": 64, "max_context": 160},
        "checkpoint": {"every": 1000},
        "runtime": {"threads": THREADS},
    }
    for override in overrides:
        key, _, value = override.partition("=")
        section, _, name = key.partition(".")
        if name:
            raw.setdefault(section, {})[name] = json.loads(value)
        else:
            raw[section] = json.loads(value)
    run = Path(tempfile.mkdtemp())
    computed: dict[int, tuple[float, float]] = {}
    """By batch: when it ended, and the processor seconds of the run until then, in all its processes."""

    def note(batch: BatchRecord) -> None:
        computed[batch.batch] = time.perf_counter(), computed_s_by([os.getpid(), *descendants()])

    try:
        plan = make_plan(TrainConfig.model_validate(raw))
        ended = asyncio.run(train(plan, run / "run", "new", listeners=Listeners(batch=note)))
        lanes = lane_shares(run / "run" / "trace.json")
    finally:
        shutil.rmtree(run, ignore_errors=True)
    batches = ended.record.batches
    timed = batches[WARM_UP : WARM_UP + STEPS]
    first, last = batches[WARM_UP - 1].totals, timed[-1].totals
    seconds = last.elapsed_s - first.elapsed_s
    samples = sum(batch.samples for batch in timed)
    (began, before), (stopped, after) = computed[batches[WARM_UP - 1].batch], computed[timed[-1].batch]
    print(
        json.dumps(
            {
                "samples_per_s": samples / seconds,
                "bound": (stopped - began) * THREADS / (after - before),
                "lane_shares": lanes,
                "mean_length": statistics.mean(batch.response_tokens_mean for batch in batches),
                "train_share": (last.train_s - first.train_s) / seconds,
                "generate_share": (last.generate_s - first.generate_s) / seconds,
                "masked_share": sum(batch.masked_tokens for batch in timed)
                / sum(batch.masked_tokens + batch.trained_tokens for batch in timed),
                "mismatch_max_abs": max(batch.mismatch_max_abs or 0.0 for batch in batches),
                "nonpad_share": 1
                - sum(batch.padding_tokens for batch in batches) / sum(batch.forwarded_tokens for batch in batches),
            }
        )
    )


def lane_shares(trace: Path) -> dict[str, float]:
    """Of a traced run: the share of its time in which each lane computed. Empty for others."""
    if not trace.exists():
        return {}
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    whole = max(span["ts"] + span["dur"] for span in spans)
    lanes = dict.fromkeys(span["name"] for span in spans)
    return {lane: sum(span["dur"] for span in spans if span["name"] == lane) / whole for lane in lanes}


def trl_run(
    python: str, folder: Path, lengths: str, dtype: str, seed: int, timeout_s: float = 900, **changes: Any
) -> dict[str, Any]:
    """`changes`: of the job; `device` is the CPU unless given, and then it has this process's packages and devices."""
    seen = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES") if "device" in changes else ()
    job = {
        "threads": THREADS,
        "prompts": str(folder / "prompts.jsonl"),
        "model": str(folder / lengths),
        "output": str(folder / "trl"),
        "dtype": dtype,
        "prompts_per_batch": PROMPTS_PER_BATCH,
        "samples_per_prompt": SAMPLES_PER_PROMPT,
        "max_new_tokens": MAX_NEW_TOKENS,
        "warm_up": TRL_WARM_UP,
        "steps": TRL_STEPS,
        "lr": LR,
        "seed": seed,
    } | changes
    script = Path(__file__).parent / "peers" / "trl_grpo.py"
    out = subprocess.run(
        [python, str(script), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
        | {name: os.environ[name] for name in seen if name in os.environ},
    )
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    result = json.loads(out.stdout.splitlines()[-1])
    samples = PROMPTS_PER_BATCH * SAMPLES_PER_PROMPT * len(result["seconds"])
    return {"samples_per_s": samples / sum(result["seconds"]), **result}


def compare(folder: Path, runs: int, python: str, lengths: str) -> dict[str, Any]:
    """Rounds in which all run in both dtypes, in turn. `best` takes the fastest of each side."""
    speeds: dict[str, list[float]] = {f"{side} {dtype}": [] for side in (*OWN, "trl") for dtype in DTYPES}
    mean_lengths, padding = [], []
    for seed in range(runs):
        for dtype in DTYPES:
            for name, overrides in OWN.items():
                ours = headrace_run(folder, lengths, dtype, *overrides)
                speeds[f"{name} {dtype}"].append(ours["samples_per_s"])
                mean_lengths.append(ours["mean_length"])
                padding.append(1 - ours["nonpad_share"])
            theirs = trl_run(python, folder, lengths, dtype, seed)
            speeds[f"trl {dtype}"].append(theirs["samples_per_s"])
        print(lengths, {name: round(values[-1], 1) for name, values in speeds.items()}, flush=True)
    best = {
        side: max((rates for name, rates in speeds.items() if name.startswith(side)), key=statistics.median)
        for side in ("headrace", "trl")
    }
    return {
        "lengths": lengths,
        "mean_over_longest": statistics.mean(mean_lengths) / MAX_NEW_TOKENS,
        "nonpad_share": 1 - max(padding),
        "samples_per_s": {name: spread(values) for name, values in speeds.items()},
        "ratio_float32": ratios(speeds["headrace float32"], speeds["trl float32"]),
        "ratio_best": ratios(best["headrace"], best["trl"]),
    }


def ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Round by round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--own", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--trl-python")
    parser.add_argument("--runs", type=int, default=5)
    args, overrides = parser.parse_known_args()
    if args.own:
        own(args.own, args.dtype, overrides)
        return
    if not args.trl_python:
        parser.error("--trl-python: the interpreter of an environment with trl, torch, transformers and datasets")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        for lengths, chance in EOS_CHANCE.items():
            make_model(folder / lengths, chance)
        rows = [compare(folder, args.runs, args.trl_python, lengths) for lengths in EOS_CHANCE]
    save("end_to_end", {"runs": args.runs, "steps": STEPS, "steps_trl": TRL_STEPS, "threads": THREADS, "rows": rows})


if __name__ == "__main__":
    main()
