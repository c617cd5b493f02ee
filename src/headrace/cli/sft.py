"""`headrace sft`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from headrace.config import SFTConfig, load_config


def run(args: argparse.Namespace) -> int:
    config = load_config(SFTConfig, args.config, args.overrides)
    from headrace.controller.offline import run_sft

    def report(step: int, loss: float, tokens_per_s: float) -> None:
        print(f"sft step {step}: loss {loss:.4f}, {tokens_per_s:,.0f} tokens/s", flush=True)

    result = run_sft(config, Path(args.dir), report=report, now=time.monotonic)
    print(f"model: {result.model}")
    return 0
