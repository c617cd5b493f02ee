"""What torch keeps of a device for matrix products: a workspace for each pair of a cuBLAS handle and a stream.

Each thread has a handle, and each lane a thread and a stream. The backward pass of whatever learns is computed on a
thread of autograd's, and decode graphs are captured on a stream of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from headrace.config import TrainConfig
from headrace.controller.planning.memory_by_turns import OF_LENT
from headrace.models.device_settings import CUBLAS_CONFIG, IN_ONE_ORDER

WORKSPACES = "workspaces of matrix products"
_PART = re.compile(r":(\d+):(\d+)")
"""Blocks of so many KiB, and how many."""
_OF_LEARNING, _OF_ENGINE = 2, 2
"""A forward and a backward pass; the lane, and the stream of captures."""


def workspace_bytes() -> int:
    """Of one pair."""
    asked = _PART.findall(os.environ.get(CUBLAS_CONFIG, "")) or _PART.findall(IN_ONE_ORDER)
    return 1024 * sum(int(size) * int(count) for size, count in asked)


def workspaces_of_run(config: TrainConfig, uses: Mapping[str, int]) -> int:
    """Of all who compute, which are those that `uses` of a run's memory name, in all lanes that there may be."""
    computing = {use.partition(":")[0] for use in uses if ": activations" in use}
    sections = [each.count for each in config.engine.sections if not each.is_server and "engine" in computing]
    own = sum(sections) + (config.engine.lent if OF_LENT.partition(":")[0] in computing else 0)
    engines = own + sum(name.startswith("judge ") for name in computing)
    learning = len(computing & {"trainer", "critic"})
    scoring = len(computing & {"reference", "proximal", "teacher", "reward model"})
    checking = own if "engine: swap check" in uses else 0
    turns = config.async_.in_order or config.runtime.turns
    if turns and not (config.engine.apart or config.trainer_processes or config.scorer_processes):
        pairs = 1 + min(learning, 1) + engines + checking
    else:
        pairs = _OF_LEARNING * learning + scoring + _OF_ENGINE * engines + checking
    return pairs * workspace_bytes()


def workspaces_of_learning() -> int:
    """Of one model in training, and nothing beside it."""
    return _OF_LEARNING * workspace_bytes()
