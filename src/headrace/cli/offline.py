"""`headrace sft`, `headrace rm` and `headrace dpo`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from headrace.config import DPOConfig, RMConfig, SFTConfig, load_config


def run(args: argparse.Namespace) -> int:
    name: str = args.command

    def report(step: int, loss: float, tokens_per_s: float) -> None:
        print(f"{name} step {step}: loss {loss:.4f}, {tokens_per_s:,.0f} tokens/s", flush=True)

    out = Path(args.dir)
    if name == "sft":
        sft = load_config(SFTConfig, args.config, args.overrides)
        from headrace.controller.sft import run_sft

        result = run_sft(sft, out, report=report, now=time.monotonic)
    elif name == "rm":
        rm = load_config(RMConfig, args.config, args.overrides)
        from headrace.controller.pairs import run_rm

        result = run_rm(rm, out, report=report, now=time.monotonic)
    else:
        dpo = load_config(DPOConfig, args.config, args.overrides)
        from headrace.controller.pairs import run_dpo

        result = run_dpo(dpo, out, report=report, now=time.monotonic)
    print(f"model: {result.model}")
    return 0
