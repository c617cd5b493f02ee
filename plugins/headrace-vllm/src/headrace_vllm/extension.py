"""What the server's workers answer beside the routes of vLLM: by `/collective_rpc`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace_vllm import WIRE
from headrace_vllm.transfer import HeadraceTransfer

_TOLD = (
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


def _rope_theta(text: Any) -> Any:
    """Transformers 5 has it among others, and where layers differ in it, not at all."""
    parameters = getattr(text, "rope_parameters", None) or {}
    return parameters.get("rope_theta", getattr(text, "rope_theta", None))


class Extension:
    def headrace(self) -> dict[str, Any]:
        """The wire's number, which model it is and in how many processes, and what the last comparison of loaded
        weights could see."""
        config = self.model_config  # type: ignore[attr-defined]
        text = config.hf_text_config
        model = {**{name: getattr(text, name, None) for name in _TOLD}, "rope_theta": _rope_theta(text)}
        parallel = self.parallel_config  # type: ignore[attr-defined]
        told = {
            "wire": WIRE,
            "model": model,
            "max_model_len": config.max_model_len,
            "dtype": str(config.dtype),
            "logprobs_mode": str(config.logprobs_mode),
            "max_logprobs": config.max_logprobs,
            "stream_interval": self.vllm_config.scheduler_config.stream_interval,  # type: ignore[attr-defined]
            "max_num_seqs": self.vllm_config.scheduler_config.max_num_seqs,  # type: ignore[attr-defined]
            "ranks": parallel.world_size * parallel.data_parallel_size,
        }
        engine = getattr(self, "weight_transfer_engine", None)
        if not isinstance(engine, HeadraceTransfer):
            return {**told, "transfer": type(engine).__name__}
        return {**told, "transfer": "headrace", "comparison": asdict(engine.comparison)}
