"""What ranks tell each other of a batch: as JSON, in a collective."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headrace.training.sums import BatchSums


def gathered(group: Any, size: int, told: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank of a group of gloo tells, in their order. By all."""
    data = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    group.allgather([sizes], [torch.tensor([len(data)])]).wait()
    longest = max(int(each) for each in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = data
    parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(size)]
    group.allgather([parts], [padded]).wait()
    return [json.loads(bytes(part[: int(each)].tolist())) for part, each in zip(parts, sizes, strict=True)]


def plain(sums: BatchSums) -> dict[str, Any]:
    """What `merged` reads."""
    return {
        "numerator": float(sums.numerator),
        "denominator": float(sums.denominator),
        "stats": {name: float(value) for name, value in sums.stats.items()},
        "maxima": {name: float(value) for name, value in sums.maxima.items()},
        "forwarded_tokens": sums.forwarded_tokens,
        "trained_tokens": int(sums.trained_tokens),
        "padding_tokens": sums.padding_tokens,
        "operations": sums.operations,
    }


def merged(every: Sequence[dict[str, Any]]) -> BatchSums:
    """Of what several told by `plain`."""
    found = BatchSums()
    for told in every:
        found.numerator += told["numerator"]
        found.denominator += told["denominator"]
        found.forwarded_tokens += told["forwarded_tokens"]
        found.trained_tokens += told["trained_tokens"]
        found.padding_tokens += told["padding_tokens"]
        found.operations += told["operations"]
        for name, value in told["stats"].items():
            found.stats[name] = found.stats.get(name, 0.0) + value
        for name, value in told["maxima"].items():
            best = found.maxima.get(name)
            found.maxima[name] = value if best is None else float(np.maximum(best, value))
    return found
