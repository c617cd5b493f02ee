"""What an agent with a tool learns through the gateway, and the same agent without its tool.

    python -m benchmarks.lookup_agent [--seeds 3]

`examples/lookup_agent`, made and warmed up anew for each seed; held-out success over versions. Draws
docs/figures/lookup-agent.svg.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.held_out_curves import ROOT, Curve, command, curve, draw
from benchmarks.machine import save

AGENTS = {"with its tool": "agent.py:solve", "without": "agent.py:solve_alone"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    curves: dict[str, list[Curve]] = {name: [] for name in AGENTS}
    seconds: dict[str, list[float]] = {name: [] for name in AGENTS}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in (ROOT / "examples" / "lookup_agent").glob("*.*"):
                if file.suffix in (".py", ".yaml"):
                    shutil.copy(file, folder)
            command("make_files.py", str(seed), cwd=folder)
            command("-m", "headrace.cli.main", "sft", "sft.yaml", "--dir", "sft", cwd=folder)
            for side, agent in AGENTS.items():
                began = time.monotonic()
                arguments = (f"rollout.agent={agent}", f"seed={seed}", "evaluation.every=10")
                command("-m", "headrace.cli.main", "train", "grpo.yaml", "--dir", agent[9:], *arguments, cwd=folder)
                seconds[side].append(time.monotonic() - began)
                curves[side].append(curve(folder / agent[9:]))
                print(seed, side, curves[side][-1], round(seconds[side][-1]), "s", flush=True)
    draw(curves, ROOT / "docs" / "figures" / "lookup-agent.svg", "held-out success")
    save("lookup_agent", {"curves": curves, "train_s": seconds})


if __name__ == "__main__":
    main()
