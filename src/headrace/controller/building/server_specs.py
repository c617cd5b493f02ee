"""From which the workers of inference servers are built."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.config import TrainConfig
from headrace.config.model import EngineSection, is_here
from headrace.config.values.tokens import token_of
from headrace.controller.planning.cache_memory import cache_of
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.server_launch import server_launch
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.models.config_identity import identity
from headrace.models.loading import read_model_config
from headrace.roles.workers.server_engine import ServerSpec


def server_spec(
    plan: Plan, section: EngineSection, place: int, rank: int, folder: Path | None, returns: bool
) -> ServerSpec:
    """Of the server at this place of its section, the one of this rank among the run's engines. `folder`: of the run,
    for what it prints; in a temporary one unless given. `returns`: whether somebody brings it back."""
    config, cache = plan.config, cache_of(section, plan.config, plan.memory.cache)
    dtype = config.engine.dtype or config.model.dtype
    logs = Path(tempfile.mkdtemp(prefix="headrace-logs-")) if folder is None else folder.absolute() / "logs"
    model = read_model_config(config.model.path)
    own = plan.weights
    return ServerSpec(
        kind=section.kind,
        limits=Limits(
            cache.slots, cache.max_context, plan.vocab_size, dtype, silence_s=config.runtime.stuck.decode_step_s
        ),
        expected=Expected(
            identity(model),
            cache.max_context,
            dtype,
            config.truncates,
            config.most_kept,
            model.model_type,
            os.path.abspath(own) if os.path.isdir(own) else own,
        ),
        launch=None if section.urls else server_launch(config, section, plan.weights, cache, rank),
        log=str(logs / f"{section.kind}-{rank}.log"),
        url=section.urls[place] if section.urls else "",
        token=_token("token_env", section.token_env),
        admin_token=_token("admin_token_env", section.admin_token_env),
        returns=returns,
        weights_from=_weights_from(config, section.urls[place] if section.urls else None),
    )


def _token(key: str, name: str | None) -> str | None:
    """That of the variable which a key of `engine` names. Raises ConfigError."""
    return None if name is None else token_of(f"engine.{key}", name)


def _weights_from(config: TrainConfig, url: str | None) -> str:
    """See `ServerSpec`. `url`: None for a server that is launched."""
    if not config.sends_weights:
        return ""
    return "127.0.0.1" if url is None or is_here(url) else config.weights.host
