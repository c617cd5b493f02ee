"""On which device workers compute that a cluster gives one, and those that it gives none."""

from __future__ import annotations

import torch

from headrace.config import DPOConfig, RMConfig, SFTConfig, TrainConfig
from headrace.config.cluster import LENT, ClusterConfig, RanksClusterConfig, gives_gpu
from headrace.models.loading import resolve_device

Config = TrainConfig | SFTConfig | RMConfig | DPOConfig


def role_device(config: Config, role: str) -> torch.device:
    """As each worker of the role sees it. What this machine has says nothing of one to which a cluster that is joined
    gives a device. Raises ConfigError."""
    asked = config.model.device
    if not gives_gpu(config.cluster, role):
        return resolve_device(asked)
    joined = config.runtime.address is not None
    return torch.device(resolve_device(asked, given=joined).type)  # of one device the index is none of this machine's


def policy_device(config: TrainConfig) -> torch.device:
    """Of its `policy_role`. Raises ConfigError."""
    return role_device(config, policy_role(config))


def policy_role(config: TrainConfig) -> str:
    """Of whoever trains the policy; where nobody does, of its engines."""
    return "engine" if config.rollouts_only else "trainer"


def lanes_device(config: TrainConfig) -> torch.device:
    """Of what is computed in the run's own process: with Ray no model is there. Raises ConfigError."""
    return torch.device("cpu") if config.runtime.kind == "ray" else resolve_device(config.model.device)


def is_elsewhere(config: Config, role: str) -> bool:
    """Whether its workers are where a cluster that is joined has room: what is free there nobody here can ask."""
    role, cluster = "trainer" if role == LENT else role, config.cluster
    sets = () if isinstance(cluster, RanksClusterConfig) else cluster.sets
    everywhere = isinstance(cluster, ClusterConfig) and cluster.colocate == "all"
    is_placed = everywhere or role in cluster.place or any(role in each for each in sets)
    return is_placed and config.runtime.address is not None
