"""How the servers of a run are launched."""

from __future__ import annotations

import os
import sys

from headrace.config import ConfigError, TrainConfig
from headrace.config.model import EngineSection
from headrace.controller.building.processors import threads_of_worker
from headrace.controller.planning.role_devices import role_device
from headrace.engines.embedded.cache_plan import CachePlan
from headrace.engines.servers.kinds import KINDS
from headrace.engines.servers.launch import ServerLaunch

_GIB = 1 << 30
_SEEDS = 1000
"""Servers of one run, at most: no two have one seed."""
_SEED_END = 1 << 32
"""Both kinds of servers give their seed to numpy, which takes none from here on."""


def server_launch(
    config: TrainConfig, section: EngineSection, weights: str, cache: CachePlan, rank: int
) -> ServerLaunch:
    """Of a server of this section, the one of this rank among the run's engines. Raises ConfigError for an interpreter
    that is not there, and options that are not to be given."""
    launch = ServerLaunch(
        python=os.path.abspath(os.path.expanduser(section.python)) if section.python else sys.executable,
        weights=os.path.abspath(weights) if os.path.isdir(weights) else weights,  # else a name on the Hub
        dtype=config.engine.dtype or config.model.dtype,
        slots=cache.slots,
        max_context=cache.max_context,
        seed=(config.seed * _SEEDS + rank) % _SEED_END,
        keeps=config.async_.swap == "keep",
        on_cpu=role_device(config, "engine").type == "cpu",
        top_k=config.most_kept,
        kv_cache_gib=cache.bytes_wanted / _GIB,
        threads=threads_of_worker(config),
        args=section.args,
        start_s=section.start_deadline_s,
    )
    if not os.access(launch.python, os.X_OK):
        raise ConfigError(f"engine.python is {section.python!r}, and there is no interpreter at {launch.python}")
    KINDS[section.kind].command(launch, 0)
    return launch
