"""Weights through shared memory, from one process into resident parameters of another, against one memcpy of as much.

Both are timed in the same process, in turn: the publication, the copy out, and a copy between two resident tensors.
Pages are warm: everything was written before.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import torch

from benchmarks.machine import save, spread
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

TENSORS = 50
_WARM = 4


def tensors(megabytes: int, value: float) -> dict[str, torch.Tensor]:
    count = megabytes * 1_000_000 // 4 // TENSORS
    return {f"layer.{place}": torch.full((count,), value) for place in range(TENSORS)}


def publish(folder: Path, megabytes: int) -> None:
    """The other process: a publication for each line that it reads, told with its seconds."""
    publisher, own = ShmPublisher(folder), tensors(megabytes, 1.0)
    for number, _ in enumerate(sys.stdin, 1):
        began = time.perf_counter()
        publisher.publish(Version(0, number), own.items())
        print(time.perf_counter() - began, flush=True)


def published(process: subprocess.Popen[str]) -> float:
    ask: IO[str] | None = process.stdin
    answer: IO[str] | None = process.stdout
    assert ask is not None
    assert answer is not None
    ask.write("\n")
    ask.flush()
    return float(answer.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--publish", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.publish is not None:
        publish(args.publish, args.megabytes)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        command = [sys.executable, "-m", "benchmarks.weights_shm", "--publish", folder]
        process = subprocess.Popen(
            [*command, "--megabytes", str(args.megabytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        own, source, target = (tensors(args.megabytes, value) for value in (0.0, 1.0, 2.0))
        receiver = ShmReceiver(folder)
        ratios, moved_s, copied_s = [], [], []
        for number in range(args.rounds + _WARM):
            began = time.perf_counter()
            for name, tensor in target.items():
                tensor.copy_(source[name])
            copy = time.perf_counter() - began
            out = published(process)
            began = time.perf_counter()
            receiver.receive_into(own)
            moved = out + time.perf_counter() - began
            assert all(bool((tensor[:9] == 1.0).all()) for tensor in own.values())
            if number >= _WARM:
                ratios.append(copy / moved)
                moved_s.append(moved)
                copied_s.append(copy)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    result = {
        "megabytes": args.megabytes,
        "memcpy_over_shm": spread(ratios),
        "shm_s": statistics.median(moved_s),
        "memcpy_s": statistics.median(copied_s),
    }
    print(
        f"{args.megabytes} MB: {statistics.median(moved_s):.3f} s through shared memory, "
        f"{statistics.median(copied_s):.3f} s for one copy: {statistics.median(ratios):.2f} (target 0.40)"
    )
    save("weights_shm", result)


if __name__ == "__main__":
    main()
