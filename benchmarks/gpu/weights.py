"""Weights from one process into resident parameters of another on the same device, by each way that there is."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.shapes import free_memory, random_model
from headrace.config.values.dtypes import dtype_name
from headrace.weights.transport import Transport, open_transport
from headrace.weights.version import Version

_WAYS: tuple[Transport, ...] = ("cuda_ipc", "shm")


def weights_rows(shape: str, bandwidth: float, runs: int) -> list[dict[str, Any]]:
    """`received_s` until the other process has a whole version in its parameters, from when it is told of it."""
    model = random_model(shape, torch.bfloat16)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    size = sum(tensor.nbytes for tensor in tensors.values())
    published: dict[str, list[float]] = {way: [] for way in _WAYS}
    received: dict[str, list[float]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folders = {way: Path(name) / way for way in _WAYS}
        for folder in folders.values():
            folder.mkdir()
        device = torch.device("cuda", torch.cuda.current_device())
        ends = {way: open_transport(way, folder, device) for way, folder in folders.items()}
        outline = {name: [dtype_name(t.dtype), list(t.shape)] for name, t in tensors.items()}
        reader = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.weights_reader"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            print(json.dumps(outline), file=reader.stdin, flush=True)
            for number in range(1, runs + 2):
                for way, end in ends.items():
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    end.publish(Version(0, number), tensors.items())
                    taken = time.perf_counter() - began
                    print(json.dumps([way, end.address]), file=reader.stdin, flush=True)
                    told = json.loads(reader.stdout.readline())
                    assert told["number"] == number
                    if number > 1:
                        published[way].append(taken)
                        received[way].append(told["seconds"])
        finally:
            reader.kill()
            reader.wait()
    del model, tensors
    free_memory()
    return [
        {
            "shape": shape,
            "transport": way,
            "gib": size / 2**30,
            "published_s": statistics.median(published[way]),
            "published_share_of_copy": 2 * size / statistics.median(published[way]) / bandwidth,
            "received_s": statistics.median(received[way]),
            "received_share_of_copy": 2 * size / statistics.median(received[way]) / bandwidth,
        }
        for way in _WAYS
    ]
