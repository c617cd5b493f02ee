"""What it costs a run that its models have processes of their own, or are actors of a Ray of its own.

    python -m benchmarks.places [--runs 5] [--batches 50]

The quickstart's GRPO (5 M parameters, 16 x 8 responses of at most 23 tokens) from its untrained model, without
evaluation, on all cores. Sides, in turn: `inline` (engine and trainer are lanes of the command), `process`
(`engine.process: true`, `trainer.placement: process`), `ray` (`runtime: {kind: ray}`). Batches a second from the tenth
on, which is samples a second / 128; and the seconds from the command to the end of the first batch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread

FIRST = 10
SIDES = {
    "inline": [],
    "process": ["engine.process=true", "trainer.placement=process"],
    "ray": ["runtime.kind=ray"],
}
_BATCH = re.compile(r"batch ([0-9]+)/")


def run(job: Path, model: Path, folder: Path, batches: int, overrides: list[str]) -> tuple[float, float]:
    """Batches a second, and seconds until the first one's end."""
    given = [f"model.path={model}", "data.eval=null", f"trainer.batches={batches}", *overrides]
    command = [*(sys.executable, "-u", "-m", "headrace.cli.main", "train"), str(job), "--dir", str(folder), "--plain"]
    began, ends = time.monotonic(), {}
    lines = []
    with subprocess.Popen([*command, *given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if found := _BATCH.match(line):
                ends[int(found[1])] = time.monotonic()
    if process.returncode:
        raise RuntimeError("".join(lines)[-2000:])
    return (batches - FIRST) / (ends[batches] - ends[FIRST]), ends[1] - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=50)
    args = parser.parse_args()
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    starts: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = [sys.executable, "-m", "headrace.cli.main", "quickstart", "--only-inputs", "--dir", str(folder)]
        subprocess.run(inputs, check=True, capture_output=True)
        for number in range(args.runs):
            for side, overrides in SIDES.items():
                made = run(folder / "grpo.yaml", folder / "model", folder / f"{side}{number}", args.batches, overrides)
                speeds[side].append(made[0])
                starts[side].append(made[1])
            print({side: round(values[-1], 2) for side, values in speeds.items()}, flush=True)
    ratios = {
        side: spread([a / b for a, b in zip(speeds[side], speeds["inline"], strict=True)])
        for side in SIDES
        if side != "inline"
    }
    found: dict[str, Any] = {
        "runs": args.runs,
        "batches_per_s": {side: spread(values) for side, values in speeds.items()},
        "over_inline": ratios,
        "first_batch_s": {side: spread(values) for side, values in starts.items()},
    }
    print(ratios, found["first_batch_s"])
    save("places", found)


if __name__ == "__main__":
    main()
