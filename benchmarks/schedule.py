"""What each `on_deadline` costs: trainer idle share, and what is masked, late or handed back.

    python -m benchmarks.schedule [--seeds 3]

Over max_staleness and the tail of answers' lengths, in virtual time (`benchmarks.simulated`). The engine decodes
everything that is admitted at once, and a step takes 0.6 of an answer's mean time.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from typing import Any, get_args

from benchmarks.machine import save
from benchmarks.simulated import Circumstances, measures, run
from headrace.experience.schedule import OnDeadline

ETAS, TAILS = (0, 1, 2, 4, 8), (0.0, 0.75, 1.5)
BATCH, SAMPLES, BATCHES = 16, 2, 40
SHOWN = {
    "idle_share": ("idle", ".2f"),
    "speed": ("speed", ".2f"),
    "late_groups_share": ("late", ".2f"),
    "masked_share": ("masked", ".3f"),
    "handed_back_per_trained": ("back", ".2f"),
    "staleness_max": ("most", ".0f"),
}


def measure(eta: int, tail: float, rule: OnDeadline, seeds: int) -> dict[str, float]:
    """Medians over seeds."""
    ahead = max(2, eta + 1) * BATCH
    given = Circumstances(
        batch=BATCH,
        samples=SAMPLES,
        batches=BATCHES,
        max_staleness=eta,
        on_deadline=rule,
        ahead=ahead,
        slots=ahead * SAMPLES,
        tail=tail,
        step_s=0.0,
    )
    given = replace(given, step_s=0.6 * given.answer_s)
    rows = [measures(given, run(given, seed)) for seed in range(seeds)]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    table: list[dict[str, Any]] = []
    print(f"{'eta':>3} {'tail':>5} {'rule':<5}" + "".join(f"{title:>8}" for title, _ in SHOWN.values()))
    for eta in ETAS:
        for tail in TAILS:
            for rule in get_args(OnDeadline):
                if eta == 0 and rule != "wait":
                    continue
                row = measure(eta, tail, rule, seeds)
                table.append({"max_staleness": eta, "tail_sigma": tail, "on_deadline": rule, **row})
                cells = "".join(f"{format(row[name], shown):>8}" for name, (_, shown) in SHOWN.items())
                print(f"{eta:>3} {tail:>5} {rule:<5}{cells}", flush=True)
    settings = {"prompts_per_batch": BATCH, "samples_per_prompt": SAMPLES, "batches": BATCHES, "seeds": seeds}
    save("schedule", {**settings, "rows": table})


if __name__ == "__main__":
    main()
