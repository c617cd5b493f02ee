"""The trainer's devices, lent to an engine while it waits (`engine.lent`), and not.

    python -m benchmarks.lending [--rounds 3] [--batches 30] [--mode sync] [--device auto]

The quickstart's GRPO (5 M parameters, 16 x 8 responses) from its untrained model, without evaluation; engine and
trainer in processes of their own, each with one processor, which stand for devices of their own (it takes two), or on
the device that is given. Sides in turn, each with one engine; the lent one has the trainer's processor. Of each:
batches a second, the share of the run in which each computed, and who waited for whom; of the lent side what lending
took and made, by its events. `--mode`: of `async`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.by_turns import run, table
from benchmarks.machine import save, spread
from headrace.store import RunReader

SIDES = {"without": [], "lent": ["engine.lent=1"]}
STALENESS = {"sync": 0, "one_step_off": 1, "async": 2}


def lendings(folder: Path) -> dict[str, float]:
    """Of a run's lendings, in all."""
    with RunReader(folder) as reader:
        events = [event.data for event in reader.events.read() if event.kind == "lent"]
    return {
        "count": len(events),
        "seconds": sum(each["until"] - each["from"] for each in events),
        "begin_s": sum(each["begin_s"] or 0.0 for each in events),
        "back_s": sum(each["back_s"] for each in events),
        "tokens": sum(each["tokens"] for each in events),
        "sent_away_tokens": sum(each["sent_away_tokens"] for each in events),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--mode", default="sync", choices=[*STALENESS])
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = [sys.executable, "-m", "headrace.cli.main", "quickstart", "--only-inputs", "--dir", str(folder)]
        subprocess.run(inputs, check=True, capture_output=True)
        common = [
            f"trainer.batches={args.batches}",
            f"model.device={args.device}",
            f"async.mode={args.mode}",
            "engine.process=true",
            "trainer.placement=process",
            "runtime.threads=1",
            f"async.max_staleness={STALENESS[args.mode]}",
        ]
        for number in range(args.rounds):
            for side, given in SIDES.items():
                where = folder / f"{side}{number}"
                made = run(folder / "grpo.yaml", folder / "model", where, [*common, *given])
                rows[side].append(made | {"lendings": lendings(where)})
    found: dict[str, Any] = {"rounds": args.rounds, "batches": args.batches, "mode": args.mode, "device": args.device}
    for side, of_side in rows.items():
        print("\n".join(table(side, of_side[-1])))
        found[side] = {"batches_per_s": spread([row["batches_per_s"] for row in of_side])}
        found[side] |= {key: of_side[-1][key] for key in ("busy", "trainer_s", "engines_s", "lendings")}
        print(side, round(found[side]["batches_per_s"]["median"], 3), "batches/s", of_side[-1]["lendings"])
    pairs = zip(rows["lent"], rows["without"], strict=True)
    found["ratio"] = spread([lent["batches_per_s"] / without["batches_per_s"] for lent, without in pairs])
    print("lent / without:", {key: round(value, 3) for key, value in found["ratio"].items()})
    save(f"lending_{args.mode}", found)


if __name__ == "__main__":
    main()
