"""Where tests compute."""

import os

import torch

DEVICE = torch.device(os.environ.get("HEADRACE_TEST_DEVICE", "cpu"))
"""Of models that tests make, and what `device: auto` comes to in the runs that they start: see `conftest.py`."""
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BETWEEN_PROCESSES = "shm" if DEVICE.type == "cpu" else "cuda_ipc"
"""The way of weights there, unless given."""
