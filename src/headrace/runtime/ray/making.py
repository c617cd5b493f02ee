"""Actors, made of a class of ours by name."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headrace import __version__
from headrace.runtime.process.origin import Origin
from headrace.runtime.ray.boot import ActorBoot
from headrace.runtime.workers import Placement

_DEVICES = "CUDA_VISIBLE_DEVICES"
_CALLS = 4096
"""That one actor may have in flight: most of them wait."""


def boot_of(
    origin: Origin, name: str, rank: int, generation: int, where: Placement, *, namespace: str, folder: str = ""
) -> ActorBoot:
    """`folder`: of the site, for one that is to listen there."""
    return ActorBoot(
        kind=origin.path,
        packages=list(origin.packages),
        name=name,
        rank=rank,
        generation=generation,
        threads=where.threads,
        limits=dict(where.limits),
        namespace=namespace,
        folder=folder,
        log=None if origin.log is None else str(origin.log),
        paths=[path for path in sys.path if path],
        devices=os.environ.get(_DEVICES),
        version=__version__,
        python=platform.python_version(),
    )


def make_actor(kind: type, boot: ActorBoot, name: str) -> Any:
    """Ray's handle of a new one, known by the name in the run's namespace. Blocking."""
    made: Any = ray.remote(kind).options(
        name=name,
        namespace=boot.namespace,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(),
            soft=False,  # where weights in shared memory are
        ),
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=_CALLS,
    )
    return made.remote(boot.text())
