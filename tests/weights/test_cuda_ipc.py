"""Weights in the memory of a CUDA device: what another process copies is one version, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from headrace.weights.cuda_ipc import CudaIpcPublisher, CudaIpcReceiver
from headrace.weights.plane import WeightError
from headrace.weights.version import Version

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(120),
]
WRITER = """
import sys, time, torch
from pathlib import Path
from headrace.weights.cuda_ipc import CudaIpcPublisher
from headrace.weights.version import Version

publisher = CudaIpcPublisher(Path(sys.argv[1]), torch.device("cuda", 0))
number = 0
while True:
    number += 1
    made = [(f"t{i}", torch.full((3_000_000,), float(number), device="cuda")) for i in range(4)]
    publisher.publish(Version(0, number), made)
    print(number, flush=True)
"""
READER = """
import sys, torch
from headrace.weights.cuda_ipc import CudaIpcReceiver

receiver = CudaIpcReceiver(sys.argv[1])
own = {"a": torch.zeros(5, device="cuda"), "b": torch.zeros(2, 2, dtype=torch.bfloat16, device="cuda")}
for line in sys.stdin:
    print(receiver.receive_into(own).version.number, float(own["a"].sum()), float(own["b"].sum()), flush=True)
"""


def begun(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_other_processes_get_each_version(tmp_path: Path) -> None:
    publisher = CudaIpcPublisher(tmp_path, torch.device("cuda", 0))
    readers = [begun(READER, tmp_path) for _ in range(2)]
    try:
        for number in (1, 2, 3, 4):
            tensors = {"a": torch.full((5,), float(number)), "b": torch.full((2, 2), number, dtype=torch.bfloat16)}
            publisher.publish(Version(0, number), [(name, tensor.cuda()) for name, tensor in tensors.items()])
            for reader in readers:
                assert reader.stdin is not None
                assert reader.stdout is not None
                reader.stdin.write("\n")
                reader.stdin.flush()
                assert reader.stdout.readline().split() == [str(number), str(5.0 * number), str(4.0 * number)]
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


def test_a_reader_never_sees_two_versions_and_outlives_the_writer(tmp_path: Path) -> None:
    writer = begun(WRITER, tmp_path)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        receiver, seen = CudaIpcReceiver(str(tmp_path)), list[int]()
        own = {f"t{i}": torch.zeros(3_000_000, device="cuda") for i in range(4)}
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            try:
                number = receiver.receive_into(own).version.number
            except WeightError:  # overtaken three times: this writer does nothing else
                continue
            assert all(bool((tensor == number).all()) for tensor in own.values())
            seen.append(number)
        assert seen == sorted(seen)
        assert len(set(seen)) > 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        if receiver.latest() is not None:
            number = receiver.receive_into(own).version.number
            assert all(bool((tensor == number).all()) for tensor in own.values())
    finally:
        writer.kill()
        writer.wait()


def test_a_device_that_a_process_does_not_see_is_told(tmp_path: Path) -> None:
    publisher = CudaIpcPublisher(tmp_path, torch.device("cuda", 0))
    publisher.publish(Version(0, 1), [("a", torch.ones(3, device="cuda"))])
    handles = tmp_path / "handles.json"
    handles.write_text(handles.read_text().replace(torch.cuda.get_device_properties(0).uuid.__str__(), "GPU-other"))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom headrace.weights.cuda_ipc import CudaIpcReceiver\nCudaIpcReceiver(sys.argv[1]).latest()",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "this process does not see (GPU-other); use weights.transport: shm" in done.stderr
