"""What a rollout worker process costs a run whose workflow computes little, and brings one whose workflow does much.

    python -m benchmarks.rollout_workers [--runs 5] [--old PATH] [--workflows plain busy]

GRPO as in `benchmarks.end_to_end`, with its own batches; samples a second over the timed ones. `plain`: one completion
a sample. `busy`: `benchmarks/busy_workflow.py`, 4 turns of 16 tokens with 2 ms of pure Python before each. Sides, in
turn: `rollout.workers` 0 and 1 of this tree, and with `--old` the tree at PATH. `bound`: what a second process could
bring at best, if no core rested while the timed batches are made: their seconds, by the processor seconds that all
threads of the run's processes computed meanwhile, per core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model, make_prompts

ROOT = Path(__file__).parents[1]
WORKFLOWS = {"plain": None, "busy": f"{ROOT}/benchmarks/busy_workflow.py:BusyTurns"}


def run(tree: Path, model: Path, workflow: str | None, workers: int | None) -> dict[str, Any]:
    overrides = [f"rollout.workflow={json.dumps(workflow)}"] if workflow is not None else []
    overrides += [f"rollout.workers={workers}"] if workers is not None else []
    command = [sys.executable, "-m", "benchmarks.end_to_end", "--own", str(model), "--dtype", "float32", *overrides]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
    out = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if out.returncode:
        raise RuntimeError(out.stderr[-2000:])
    told: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--workflows", nargs="+", choices=list(WORKFLOWS), default=list(WORKFLOWS))
    args = parser.parse_args()
    sides: dict[str, tuple[Path, int | None]] = {"0": (ROOT, 0), "1": (ROOT, 1)}
    if args.old is not None:
        sides["old"] = (args.old, None)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_prompts(folder / "prompts.jsonl")
        make_model(folder / "model", 0.0)
        for kind in args.workflows:
            workflow = WORKFLOWS[kind]
            speeds: dict[str, list[float]] = {side: [] for side in sides}
            bounds = []
            for _ in range(args.runs):
                for side, (tree, workers) in sides.items():
                    told = run(tree, folder / "model", workflow, workers)
                    speeds[side].append(told["samples_per_s"])
                    if side == "0":
                        bounds.append(told["bound"])
                print(kind, {side: round(values[-1], 1) for side, values in speeds.items()}, flush=True)
            ratios = {
                f"1 over {other}": spread([a / b for a, b in zip(speeds["1"], speeds[other], strict=True)])
                for other in sides
                if other != "1"
            }
            if args.old is not None:
                ratios["0 over old"] = spread([a / b for a, b in zip(speeds["0"], speeds["old"], strict=True)])
            found = {side: spread(values) for side, values in speeds.items()}
            rows.append({"workflow": kind, "samples_per_s": found, "ratios": ratios, "bound": spread(bounds)})
            print(kind, ratios, "bound", spread(bounds), flush=True)
    save("rollout_workers", {"runs": args.runs, "rows": rows})


if __name__ == "__main__":
    main()
