"""The quickstart over several seeds: accuracy before and after, lengths and time.

python -m benchmarks.quickstart [--seeds 5] [--large] [--keep FOLDER]

`--large`: its larger sister, with the curve of each seed. `--keep`: where the last seed's folder stays, whose run
`docs/make_figures.py` draws.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import save
from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader


def run(seed: int, folder: Path, *, large: bool) -> dict[str, Any]:
    """One whole `headrace quickstart` in a process of its own."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "headrace.cli.main", "quickstart", "--dir", str(folder), "--seed", str(seed)]
    command += ["--fresh", *(["--large"] if large else [])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=7200 if large else 600)
    seconds = time.perf_counter() - began
    with RunReader(folder / "run") as reader:
        record = RunWatcher(reader).read()
    first, last = record.evaluations[0], record.evaluations[-1]
    curve = {
        "held_out": [(each.number, each.score) for each in record.evaluations],
        "rewards": [batch.reward_mean for batch in record.batches],
    }
    return {
        "seed": seed,
        "accuracy_before": first.score,
        "accuracy_after": last.score,
        "response_tokens_before": first.response_tokens_mean,
        "response_tokens_after": last.response_tokens_mean,
        "max_staleness": max(max(batch.staleness) for batch in record.batches),
        "rl_s": record.totals.elapsed_s,
        "whole_s": seconds,
        **(curve if large else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    rows = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as name:
            rows.append(run(seed, args.keep or Path(name) / "quickstart", large=args.large))
        print(json.dumps(rows[-1]), flush=True)
    save("quickstart_large" if args.large else "quickstart", {"held_out_prompts": 256, "rows": rows})


if __name__ == "__main__":
    main()
