"""From which the workers of inference servers are built."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import TrainConfig
from headrace.config.model import EngineSection, is_here
from headrace.controller.planning.cache_memory import cache_of
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.server_launch import server_launch
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.models.loading import read_model_config
from headrace.roles.workers.server_engine import ServerSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TOLD_APART = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "tie_word_embeddings",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
)
"""What tells models apart."""


def server_spec(
    plan: Plan, section: EngineSection, place: int, rank: int, folder: Path | None, returns: bool
) -> ServerSpec:
    """Of the server at this place of its section, the one of this rank among the run's engines. `folder`: of the run,
    for what it prints; in a temporary one unless given. `returns`: whether somebody brings it back."""
    config, cache = plan.config, cache_of(section, plan.config, plan.memory.cache)
    dtype = config.engine.dtype or config.model.dtype
    logs = Path(tempfile.mkdtemp(prefix="headrace-logs-")) if folder is None else folder.absolute() / "logs"
    text = read_model_config(config.model.path).get_text_config()
    return ServerSpec(
        kind=section.kind,
        limits=Limits(
            cache.slots, cache.max_context, plan.vocab_size, dtype, silence_s=config.runtime.stuck.decode_step_s
        ),
        expected=Expected(
            told_apart(text),
            cache.max_context,
            dtype,
            config.truncates,
            config.most_kept,
        ),
        launch=None if section.urls else server_launch(config, section, plan.weights, cache, rank),
        log=str(logs / f"{section.kind}-{rank}.log"),
        url=section.urls[place] if section.urls else "",
        token_env=section.token_env,
        admin_token_env=section.admin_token_env,
        returns=returns,
        weights_from=_weights_from(config, section.urls[place] if section.urls else None),
    )


def told_apart(text: PreTrainedConfig) -> dict[str, Any]:
    """What a server's model is compared by. `text`: a config of transformers."""
    rope = getattr(text, "rope_parameters", None) or {}
    theta = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}  # not where layers differ in it
    return {name: getattr(text, name) for name in _TOLD_APART if hasattr(text, name)} | theta


def _weights_from(config: TrainConfig, url: str | None) -> str:
    """See `ServerSpec`. `url`: None for a server that is launched."""
    if not config.sends_weights:
        return ""
    return "127.0.0.1" if url is None or is_here(url) else config.weights.host
