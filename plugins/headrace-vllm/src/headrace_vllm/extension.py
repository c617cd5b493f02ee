"""What the server's workers answer beside the routes of vLLM: by `/collective_rpc`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace_vllm import WIRE
from headrace_vllm.told_model import told_model
from headrace_vllm.transfer import HeadraceTransfer


class Extension:
    def headrace(self) -> dict[str, Any]:
        """The wire's number, which model it is and in how many processes, and what the last comparison of loaded
        weights could see."""
        config = self.model_config  # type: ignore[attr-defined]
        parallel = self.parallel_config  # type: ignore[attr-defined]
        scheduler = self.vllm_config.scheduler_config  # type: ignore[attr-defined]
        told = {
            "wire": WIRE,
            "api_processes": getattr(parallel, "_api_process_count", 1),
            "has_copies_elsewhere": getattr(parallel, "local_engines_only", False),
            "model": told_model(config),
            "max_model_len": config.max_model_len,
            "dtype": str(config.dtype),
            "logprobs_mode": str(config.logprobs_mode),
            "max_logprobs": config.max_logprobs,
            "stream_interval": scheduler.stream_interval,
            "max_num_seqs": scheduler.max_num_seqs,
            "scheduling_policy": scheduler.policy,
        }
        engine = getattr(self, "weight_transfer_engine", None)
        if not isinstance(engine, HeadraceTransfer):
            return {**told, "transfer": type(engine).__name__}
        return {**told, "transfer": "headrace", "comparison": asdict(engine.comparison)}
