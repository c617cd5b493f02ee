"""Small language models that judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from controller_jobs import CHARACTERS, make_model
from safetensors.torch import load_file, save_file

ASKED: dict[str, Any] = {
    "prompt": "{prompt} {response}? ",
    "pattern": "([0-9])",
    "low": 0,
    "high": 9,
    "max_new_tokens": 3,
    "timeout_s": 60,
}
"""Of `reward.judge`, for one that says digits."""
DIGITS = [CHARACTERS.index(digit) + 2 for digit in "0123456789"]


def make_judge(folder: Path, *, says_digits: bool) -> Path:
    """A model that says digits alone, or none at all: logits of 0 lose against ten random ones."""
    make_model(folder, "llama")
    weights = load_file(folder / "model.safetensors")
    silent = torch.ones(weights["lm_head.weight"].shape[0], dtype=torch.bool)
    silent[DIGITS] = False
    weights["lm_head.weight"] *= 20
    weights["lm_head.weight"][silent if says_digits else ~silent] = 0.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
