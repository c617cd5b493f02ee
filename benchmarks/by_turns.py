"""Engines and trainer on equal devices: by turns (`engine.colocated`), in `sync` with memory for both, and in `async`.

    python -m benchmarks.by_turns [--rounds 3] [--batches 30] [--device auto] [--model FOLDER]

The quickstart's GRPO (5 M parameters, 16 x 8 responses of at most 23 tokens) from its untrained model, without
evaluation, in one process on the device that is given, so that each side has the same. Sides in turn, each in a process
of its own. Of each: batches a second, the most memory that it had resident (as the kernel counts it) and, on a CUDA
device, that torch had allocated there; what the trainer's and the engines' time went to, and the share in which each
computed, as `summary.json` has them: the two tables that tell who waited for whom.
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
from headrace.observe.record import Totals
from headrace.observe.shares import of_side, shares

SIDES = {
    "by turns": ["async.mode=sync", "async.max_staleness=0", "engine.colocated=true"],
    "sync": ["async.mode=sync", "async.max_staleness=0"],
    "async": [],
}
_TRAIN = """
import sys
import torch
from headrace.cli.main import main
code = main(sys.argv[2:])
if torch.cuda.is_initialized():
    open(sys.argv[1], "w").write(str(torch.cuda.max_memory_allocated()))
sys.exit(code)
"""


def run(job: Path, model: Path, folder: Path, given: list[str]) -> dict[str, Any]:
    """What one run took, and its summary's times."""
    on_device = folder.with_suffix(".device")
    command = [sys.executable, "-c", _TRAIN, str(on_device), "train", str(job), "--dir", str(folder), "--plain"]
    with tempfile.TemporaryFile() as out:
        overrides = [f"model.path={model}", "data.eval=null", *given]
        process = subprocess.Popen([*command, *overrides], stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            out.seek(0)
            raise RuntimeError(out.read().decode()[-2000:])
    summary = json.loads((folder / "summary.json").read_text())
    time, wall_s = summary["time"], summary["wall_s"]
    return {
        "batches_per_s": summary["version"] / wall_s,
        "resident_mib": used.ru_maxrss / 1024,
        "device_mib": int(on_device.read_text()) / 2**20 if on_device.exists() else None,
        "busy": time["busy"],
        "trainer_s": time["trainer_s"],
        "engines_s": time["engines_s"],
        "wall_s": wall_s,
    }


def table(side: str, made: dict[str, Any]) -> list[str]:
    """Of one run, what each had its time for."""
    busy = ", ".join(f"{name} {share:.0%}" for name, share in made["busy"].items())
    lines = [f"{side}: computed {busy}"]
    found = shares(Totals(trainer_s=made["trainer_s"], engines_s=made["engines_s"]))
    for who in ("trainer", "engines"):
        told = [f"{'waits: ' * each.is_wait}{each.what} {each.share:.0%}" for each in of_side(found, who)]
        lines.append(f"  {who:<8} {', '.join(told)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", type=Path, help="another, of as many positions; its memory is then worth a look")
    args = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = [sys.executable, "-m", "headrace.cli.main", "quickstart", "--only-inputs", "--dir", str(folder)]
        subprocess.run(inputs, check=True, capture_output=True)
        common = [f"trainer.batches={args.batches}", f"model.device={args.device}"]
        for number in range(args.rounds):
            for side, given in SIDES.items():
                where = folder / f"{side.replace(' ', '_')}{number}"
                rows[side].append(run(folder / "grpo.yaml", args.model or folder / "model", where, [*common, *given]))
    for side, made in rows.items():
        print("\n".join(table(side, made[-1])))
    keys = ("batches_per_s", "resident_mib", "device_mib")
    found: dict[str, Any] = {
        "rounds": args.rounds,
        "batches": args.batches,
        "device": args.device,
        "model": str(args.model or ""),
    }
    for side, made in rows.items():
        told = {key: [row[key] for row in made if row[key] is not None] for key in keys}
        found[side] = {key: spread(values) for key, values in told.items() if values}
        found[side] |= {key: made[-1][key] for key in ("busy", "trainer_s", "engines_s")}
        print(side, {key: round(value["median"], 2) for key, value in found[side].items() if key in keys})
    save("by_turns", found)


if __name__ == "__main__":
    main()
