"""How an SGLang server is launched."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.engines.servers.launch import CHECKED, ServerLaunch, server_environment
from headrace.engines.servers.user_options import NotGiven, SetBy, check_switches, flags, title, user_options
from headrace.weights.swap_check import LONG

MODULE, CPU_MODULE = "sglang.launch_server", "headrace_sglang_cpu.server"
CPU_PLUGIN = "headrace-sglang-cpu"
ROOM = 6
"""Tokens of its context that SGLang leaves free: a prompt and its answer have one less than it, a prompt 6 less."""
KEPT_AT_MOST = 4096
"""Ids of a token's kept set that it tells, unless it is told otherwise."""
_CHUNK = 512
"""Tokens of prompts that it computes at once on a CPU, which more would not make faster: whoever waits for a first
token, as after a swap, waits for the sequences of one chunk."""
_UNPAUSED = NotGiven("it would go on sampling while it is paused for new weights")
_OURS: dict[str, SetBy | NotGiven] = {
    "model_path": SetBy("model.path"),
    "model": SetBy("model.path"),
    "host": NotGiven("a launched server listens on loopback alone"),
    "port": NotGiven("it is chosen"),
    "dtype": SetBy("engine.dtype"),
    "context_length": SetBy("engine.max_context"),
    "max_running_requests": SetBy("engine.max_concurrent_sequences"),
    "random_seed": SetBy("seed"),
    "skip_tokenizer_init": NotGiven("ids go in and out, and no text"),
    "incremental_streaming_output": NotGiven("each chunk has what is new"),
    "stream_interval": NotGiven("tokens come as they are sampled"),
    "weight_version": NotGiven("versions are Headrace's"),
    "api_key": NotGiven("its worker is the only client"),
    "admin_api_key": NotGiven("its worker is the only client"),
    "tokenizer_worker_num": NotGiven("one process tells what came of all requests"),
    "pp_size": _UNPAUSED,
    "pipeline_parallel_size": _UNPAUSED,
    "enable_pdmux": _UNPAUSED,
    "device": SetBy("model.device"),
    "config": NotGiven("options are in engine.args"),
}
"""Options that are not the user's to give."""
_UNKNOWN = re.compile(r"error: (unrecognized arguments: .*|argument .*|ambiguous option: .*)")
_ABSENT = f"No module named '{CPU_MODULE.split('.')[0]}'"


def command(launch: ServerLaunch, port: int) -> list[str]:
    """Raises ConfigError for options that are not the user's to give."""
    given = user_options(launch, _OURS)
    prefers = given.get("schedule_policy", "fcfs") in ("fcfs", "lof")  # others do not go with it
    own: dict[str, object] = {
        "model_path": launch.weights,
        "served_model_name": "policy",
        "host": "127.0.0.1",
        "port": port,
        "dtype": launch.dtype,
        "context_length": launch.max_context + ROOM,
        "max_running_requests": launch.slots + CHECKED,
        "random_seed": launch.seed,
        "skip_tokenizer_init": True,
        "incremental_streaming_output": True,
        "stream_interval": 1,
        "skip_server_warmup": True,
        "sampling_mask_max_tokens": max(KEPT_AT_MOST, launch.top_k),
        "log_level_http": "warning",
        "disable_overlap_schedule": launch.keeps or launch.on_cpu,
        "enable_priority_scheduling": prefers,  # the swap check before what was retracted
        "disable_priority_preemption": prefers,
        "device": "cpu" if launch.on_cpu else None,
    }
    if launch.on_cpu:
        own |= {
            "attention_backend": "torch_native",
            "disable_cuda_graph": True,
            "grammar_backend": "none",
            "max_total_tokens": launch.slots * (launch.max_context + ROOM) + CHECKED * (LONG + ROOM),
            "sleep_on_idle": True,
            "chunked_prefill_size": _CHUNK,
        }
    check_switches(given, own, _title(launch))
    return [
        launch.python,
        "-m",
        CPU_MODULE if launch.on_cpu else MODULE,
        *flags(own | given, negates=False),
    ]


def environment(launch: ServerLaunch, own: Mapping[str, str], folder: str) -> dict[str, str]:
    """`own`: the environment of whoever launches it. `folder`: see `ServerKind`."""
    found = server_environment(own, folder) | {
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{folder}/ranks",  # else a store that listens everywhere
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",
    }
    if launch.on_cpu and launch.threads is not None:
        found["OMP_NUM_THREADS"] = str(launch.threads)
    return found


def refusal(launch: ServerLaunch, line: str) -> str | None:
    """What is wrong with how it was launched, if its words say that."""
    if (said := _UNKNOWN.search(line)) is not None:
        return f"engine.args: {_title(launch)} does not take them: {said[1]}"
    if _ABSENT in line:
        return (
            f"{launch.python} lacks {CPU_PLUGIN}, by which SGLang starts without a GPU; in a checkout of "
            f"Headrace, with the pip of SGLang's environment: pip install plugins/{CPU_PLUGIN}"
        )
    return None


def _title(launch: ServerLaunch) -> str:
    return title(launch, "SGLang", "sglang")
