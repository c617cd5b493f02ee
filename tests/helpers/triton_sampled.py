"""Run by a test, with Triton's interpreter: the engine's kernels that sample, on a CPU. Prints JSON."""

from __future__ import annotations

import json
import sys

import torch
from sampling_checks import Params, faults, mixed, rows_of

from headrace.engines.embedded.fused_sampling.fused_sampler import sample_fused

CPU = torch.device("cpu")
FEW: list[Params] = [{"temperature": 1.2}, {"top_k": 50}, {"temperature": 0.8, "top_p": 0.95}, {"temperature": 0}]
MANY = 50_257
"""Tokens: four slices."""


def found(logits: torch.Tensor, params: list[Params]) -> list[str]:
    rows, positions = rows_of(params, logits.shape[1], CPU)
    return faults(sample_fused(logits, rows, positions), logits, params, rows, positions)


def main() -> None:
    torch.manual_seed(0)
    params = mixed(97)
    logits = torch.randn(len(params), 97) * 3
    ties = (torch.randn(8, 33) * 2).round()  # some are -0.0
    bad = torch.randn(8, 20)
    bad[:, 3] = torch.tensor([torch.nan, torch.inf]).repeat(4)
    bad[5:] = -torch.inf
    bad[6:, 7:9] = -5.0
    told = {
        "as they come": found(logits, params),
        "ties": found(ties, params[2:10]),
        "not numbers": found(bad, params[:8]),
        "all in one way": found(logits[:3], [{}] * 3) + found(logits[:3], [{"top_p": 0.5}] * 3),
        "many tokens": found(torch.randn(len(FEW), MANY) * 2, FEW),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
