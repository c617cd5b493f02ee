"""`make bench`: every benchmark that needs nothing beyond this environment; figures go to `benchmarks/results/`.

Those against peers need an environment of theirs: see `benchmarks/end_to_end.py` and `benchmarks/engine.py`.
"""

from __future__ import annotations

import runpy
import sys

ALONE = (
    "pure_logic",  # first, since it tells the largest memory that this process has had
    "table",
    "schedule",
    "startup",
    "packing",
    "engine",
    "modes",
    "sandboxed_rewards",
    "rollouts",
    "million_prompts",
    "shared_memory",
    "weight_relays",
)

if __name__ == "__main__":
    sys.argv = sys.argv[:1]
    for name in ALONE:
        print(f"== {name}", flush=True)
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
