"""The engine and the trainer on one CUDA device: `make gpu-check`. Figures go to `results/gpu.json`.

    python -m benchmarks.gpu [--only NAME,NAME] [--part I/N] [--begin-within SECONDS] [--runs 5]

`--only modes,trl` are whole runs, which take longer (`benchmarks/gpu/grpo.py`); unless some are named, all others are
made.
Each measurement replaces its own figures there and leaves the others; with the device, its driver and the versions. One
that fails is a line there and at the end, with the others' figures: rows are kept as they come. After `--begin-within`
none begins, which is told and a failure; figures that are there stay, of a measurement of which no row could begin.
Shares are of the device's own bandwidth and matrix rate, measured in the same call; ratios are of sides in turn.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.ceilings import bandwidth, matrix_rate
from benchmarks.gpu.engines import decode_row, peers_row, prefill_row, swap_rows
from benchmarks.gpu.grpo import mode_rows, trl_rows
from benchmarks.gpu.memory import memory_row
from benchmarks.gpu.rows import NOT_BEGUN, MakeRows, Row, as_they_come, failures, row
from benchmarks.gpu.sampling import sampling_row
from benchmarks.gpu.shapes import free_memory
from benchmarks.gpu.training import logprob_row, training_row
from benchmarks.gpu.weights import weights_rows
from benchmarks.machine import RESULTS, describe_machine

Measurement = Callable[[int, float, float], Iterable[MakeRows]]
"""(runs, bytes/s, operations/s) -> what makes its rows"""


def _decode(runs: int, bytes_per_s: float, rate: float) -> list[MakeRows]:
    return [
        row(decode_row, shape, concurrent, 1024, bytes_per_s, runs)
        for shape in ("0.5 B", "1.5 B")
        for concurrent in (64, 256)
    ]


def _sampling(runs: int, bytes_per_s: float, rate: float) -> list[MakeRows]:
    return [
        row(sampling_row, rows, top_k, top_p, runs)
        for rows in (64, 256)
        for top_k, top_p in ((0, 1.0), (50, 1.0), (0, 0.95))
    ]


def _training(runs: int, bytes_per_s: float, rate: float) -> list[MakeRows]:
    return [
        row(training_row, "0.5 B", 8192, 1024, rate, runs),
        row(training_row, "1.5 B", 8192, 1024, rate, runs),
        row(training_row, "1.5 B", 8192, 8192, rate, runs),
        row(training_row, "1.5 B", 32768, 32768, rate, runs, ck=True),
        row(training_row, "0.5 B", 4096, 512, rate, runs, torch.float32),
        row(training_row, "1.5 B", 8192, 1024, rate, runs, offload=True),
    ]


MEASUREMENTS: dict[str, Measurement] = {
    "training": _training,
    "memory": lambda runs, bytes_per_s, rate: [
        *(row(memory_row, "0.5 B", recipe) for recipe in ("grpo", "ppo")),
        row(memory_row, "0.5 B", "grpo", offload=True),
    ],
    "prefill": lambda runs, bytes_per_s, rate: [row(prefill_row, shape, rate, runs) for shape in ("0.5 B", "1.5 B")],
    "swaps": lambda runs, bytes_per_s, rate: [partial(swap_rows, "0.5 B", 64, bytes_per_s, runs)],
    "logprobs": lambda runs, bytes_per_s, rate: [
        row(logprob_row, "0.5 B", dtype, before) for dtype in (torch.float32, torch.bfloat16) for before in (64, 1984)
    ],
    "sampling": _sampling,
    "decode": _decode,
    "peers": lambda runs, bytes_per_s, rate: [row(peers_row, shape, 64, 256, runs) for shape in ("0.5 B", "1.5 B")],
    # The last: what another process has opened of the device's memory stays taken until this one ends.
    "weights": lambda runs, bytes_per_s, rate: [
        partial(weights_rows, shape, bytes_per_s, runs) for shape in ("0.5 B", "1.5 B")
    ],
}
LONG: dict[str, Measurement] = {
    "modes": lambda runs, bytes_per_s, rate: [partial(mode_rows, "0.5 B", runs)],
    "trl": lambda runs, bytes_per_s, rate: [partial(trl_rows, "0.5 B", runs)],
    "trl 1.5 B": lambda runs, bytes_per_s, rate: [partial(trl_rows, "1.5 B", runs)],
}
"""Of whole runs: only if they are asked for by name."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(MEASUREMENTS))
    parser.add_argument("--part", default="1/1", help="every N-th measurement from the I-th on")
    parser.add_argument("--begin-within", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--runs", type=int, default=5)
    args, began = parser.parse_args(), time.monotonic()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was measured")
    bytes_per_s, rate = bandwidth(), matrix_rate()
    machine = _device(bytes_per_s, rate)
    place, count = map(int, args.part.split("/"))
    failed = []

    def may_begin() -> bool:
        return time.monotonic() - began <= args.begin_within

    for name in args.only.split(",")[place - 1 :: count]:
        if not may_begin():
            failed.append(f"{name}: {NOT_BEGUN}")
            continue
        rows: list[Row] = []
        for made in as_they_come((MEASUREMENTS | LONG)[name](args.runs, bytes_per_s, rate), free_memory, may_begin):
            rows.append(made)
            print(name, {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in made.items()}, flush=True)
            _keep(name, {"machine": machine, "runs": args.runs, "rows": rows})
        failed += [f"{name}: {what}" for what in failures(rows)]
    if failed:
        sys.exit("\n".join(["these could not be measured:", *failed]))


def _device(bytes_per_s: float, rate: float) -> dict[str, Any]:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        **describe_machine(),
        "device": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "cuda": torch.version.cuda,
        "bandwidth_tb_per_s": bytes_per_s / 1e12,
        "matrix_rate_tflops": rate / 1e12,
    }


def _keep(name: str, figures: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "gpu.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, name: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
