"""The other process of `weights.py`: copies each version that it is told of into parameters of its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping

import torch

from headrace.weights.copies import copy_each
from headrace.weights.receiving import receiver_at


def main() -> None:
    outline = json.loads(sys.stdin.readline())
    own = {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for name, (dtype, shape) in outline.items()
    }

    def take(bucket: Mapping[str, torch.Tensor]) -> None:
        copy_each((own[name], tensor) for name, tensor in bucket.items())

    receivers = {}
    for line in sys.stdin:
        way, address = json.loads(line)
        if way not in receivers:
            receivers[way] = receiver_at(way, address)
        torch.cuda.synchronize()
        began = time.perf_counter()
        manifest = receivers[way].receive_buckets(take).manifest
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        print(json.dumps({"number": manifest.version.number, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
