"""Actors, made of a class of ours by name."""

from __future__ import annotations

import os
from typing import Any

import ray

from headrace.runtime.module_search import search_paths
from headrace.runtime.node_check import versions
from headrace.runtime.process.origin import Origin
from headrace.runtime.ray.boot import ActorBoot
from headrace.runtime.ray.reservations import Options
from headrace.runtime.workers import Placement

_DEVICES = "CUDA_VISIBLE_DEVICES"
_CALLS = 4096
"""That one actor may have in flight: most of them wait."""


def boot_of(
    origin: Origin,
    name: str,
    rank: int,
    generation: int,
    where: Placement,
    options: Options,
    *,
    namespace: str,
    folder: str = "",
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
        paths=search_paths(),
        devices=os.environ.get(_DEVICES),
        has_devices="num_gpus" in options,
        versions=dict(versions()),
    )


def make_actor(kind: type, boot: ActorBoot, name: str, options: Options) -> Any:
    """Ray's handle of a new one, known by the name in the run's namespace. Blocking."""
    made: Any = ray.remote(kind).options(
        name=name,
        namespace=boot.namespace,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=_CALLS,
        **options,
    )
    return made.remote(boot.text())
