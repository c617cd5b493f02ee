"""The swap check as an engine makes it: its ids go through the engine's own decode steps, under the new weights."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config.values.dtypes import dtype_name
from headrace.engines.embedded.runners.runner import Runner
from headrace.weights.plane import WeightError
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version


def require_right(runner: Runner, check: SwapCheck, version: Version, dtype: torch.dtype, device: torch.device) -> None:
    """`runner`: with the weights of `version` and a cache that is empty, of as many slots and tokens as the check has.
    Raises WeightError where its log-probs are not those of whoever made the weights."""
    if (experts := check.experts()) is not None:
        try:
            runner.route(torch.from_numpy(experts.astype("int64")).to(device))
        except ValueError as error:
            raise WeightError(f"{version} is of another model: {error}") from error
    fault = check.fault(decoded(runner, check.tokens, check.temperature, device), dtype_name(dtype))
    if fault is not None:
        raise WeightError(f"{version} did not arrive as it was published: {fault}; it is not taken")


def decoded(runner: Runner, ids: NDArray[np.int32], temperature: float, device: torch.device) -> NDArray[np.float32]:
    """Log-probs [S, T - 1] of all `ids` [S, T] but the first, by decode steps. `runner`: as of `require_right`."""
    tokens = torch.from_numpy(ids).to(device, torch.int64)
    samples, length = tokens.shape
    found = []
    for place in range(length - 1):
        positions = torch.full((samples,), place, dtype=torch.int64, device=device)
        logits = runner.decode(tokens[:, place].contiguous(), positions, place + 1)
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        found.append(logprobs.gather(1, tokens[:, place + 1, None])[:, 0])
    told: NDArray[np.float32] = torch.stack(found, dim=1).cpu().numpy()
    return told
