"""What it costs that `async.mode: sync` gives the same weights bit for bit: against the same run without that.

    python -m benchmarks.in_order [--runs 5] [--tiny]

Both sides take turns between generation and training, on the same model, prompts and threads. `in_order` is the mode as
it is: rows are packed and summed in order of their keys once all are there, models score one group in a pass, and all
that computes takes turns. `by_arrival`: micro-batches are made as rows get ready, models score what happens to be
there, and they and the critic compute beside the actor. Two workloads: GRPO, and PPO with critic and reference.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import end_to_end
from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

SIDES = ("in_order", "by_arrival")
WORKLOADS: dict[str, tuple[str, ...]] = {"grpo": (), "ppo": ('algorithm={"recipe": "ppo"}',)}
TINY = {"PROMPTS_PER_BATCH": 2, "SAMPLES_PER_PROMPT": 2, "MAX_NEW_TOKENS": 8, "WARM_UP": 1, "STEPS": 1, "COOL_DOWN": 0}


def measure(model: Path, side: str, tiny: bool, *overrides: str) -> dict[str, Any]:
    """One run in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.in_order", "--own", str(model), "--side", side]
    arguments += ["--tiny"] if tiny else []
    out = subprocess.run([*arguments, *overrides], capture_output=True, text=True, timeout=1800, check=False)
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    return json.loads(out.stdout.splitlines()[-1])


def own(model: Path, side: str, tiny: bool, overrides: list[str]) -> None:
    """The child of `measure`."""
    from headrace.config.rollout import AsyncConfig

    for name, value in TINY.items() if tiny else ():
        setattr(end_to_end, name, value)
    if side == "by_arrival":
        AsyncConfig.in_order = property(lambda config: False)  # type: ignore[assignment, method-assign]
    end_to_end.own(model, "float32", ['async.mode="sync"', *overrides])


def compare(model: Path, overrides: tuple[str, ...], runs: int, tiny: bool) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(runs):
        for side in SIDES:
            speeds[side].append(measure(model, side, tiny, *overrides)["samples_per_s"])
        print({side: round(values[-1], 1) for side, values in speeds.items()}, flush=True)
    ratios = [a / b for a, b in zip(speeds["in_order"], speeds["by_arrival"], strict=True)]
    return {"samples_per_s": {side: spread(values) for side, values in speeds.items()}, "ratio": spread(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--own", type=Path)
    parser.add_argument("--side", choices=SIDES)
    args, overrides = parser.parse_known_args()
    if args.own:
        own(args.own, args.side, args.tiny, overrides)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "skewed", end_to_end.EOS_CHANCE["skewed"])
        rows = {
            workload: compare(folder / "skewed", extra, args.runs, args.tiny) for workload, extra in WORKLOADS.items()
        }
    if args.tiny:
        print(json.dumps(rows))
    else:
        save("in_order", {"runs": args.runs, "threads": end_to_end.THREADS, "dtype": "float32", **rows})


if __name__ == "__main__":
    main()
