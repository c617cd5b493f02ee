"""The quickstart's task through an inference server, beside the embedded engine: held-out accuracy over versions.

    python -m benchmarks.server_curves [--kind vllm] [--python .venv-vllm/bin/python] [--seeds 3] [--batches 24]

Each seed has a model and data of its own, which both engines begin with. Draws docs/figures/server-curves-KIND.svg.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.held_out_curves import ROOT, Curve, command, curve, draw
from benchmarks.machine import save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=24)
    given = parser.parse_args()
    server = (f"engine.kind={given.kind}", f"engine.python={os.path.abspath(given.python)}")
    sides: dict[str, tuple[str, ...]] = {"embedded": (), given.kind: server}
    curves: dict[str, list[Curve]] = {name: [] for name in sides}
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command(
                "-m", "headrace.cli.main", "quickstart", "--only-inputs", "--dir", "q", "--seed", str(seed), cwd=folder
            )
            command("-m", "headrace.cli.main", "sft", "q/sft.yaml", "--dir", "q/sft", cwd=folder)
            for side, more in sides.items():
                arguments = (f"trainer.batches={given.batches}", f"seed={seed}", "evaluation.every=4", *more)
                command("-m", "headrace.cli.main", "train", "q/grpo.yaml", "--dir", side, *arguments, cwd=folder)
                curves[side].append(curve(folder / side))
                print(seed, side, curves[side][-1], flush=True)
    draw(curves, ROOT / "docs" / "figures" / f"server-curves-{given.kind}.svg", "held-out accuracy, greedy")
    save(f"server_curves_{given.kind}", {"batches": given.batches, "curves": curves})


if __name__ == "__main__":
    main()
