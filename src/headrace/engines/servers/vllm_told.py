"""Whether a vLLM server is the one that a run needs, and has what was published, as it tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.config.errors import ConfigError
from headrace.config.values.dtypes import dtype_name
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.same_model import require_same_model
from headrace.engines.servers.vllm_command import TIES
from headrace.models.config_identity import identity_of
from headrace.models.rope_reach import LONG, rope_reach
from headrace.weights.plane import WeightError

WIRE = 8
"""The number of what is said to the plugin."""
PLUGIN = "headrace-vllm"
NEWEST = "start vLLM 0.32 or newer"
ROUTES = {
    "/inference/v1/generate": "POST",
    "/abort_requests": "POST",
    "/is_paused": "GET",
    "/pause": "POST",
    "/resume": "POST",
    "/start_weight_update": "POST",
    "/update_weights": "POST",
    "/finish_weight_update": "POST",
    "/weight_info": "GET",
    "/collective_rpc": "POST",
}
"""That it is asked by once it has been met."""


def ids_asked_for(top_k: int, vocab_size: int) -> int:
    """Of a token, for its kept set under top-k."""
    return min(top_k + TIES, vocab_size) if top_k else 0


def require_fits(told: Mapping[str, Any], expected: Expected, vocab_size: int, where: str) -> None:
    """`told`: by the plugin, of one of its processes. `where`: its name and address. Raises ConfigError."""
    if told.get("wire") != WIRE or told.get("transfer") != "headrace":
        raise ConfigError(
            f"{where} has {PLUGIN} of wire {told.get('wire')} and takes weights by {told.get('transfer')!r}; this "
            f'headrace needs wire {WIRE} and --weight-transfer-config \'{{"backend": "headrace"}}\''
        )
    require_same_model(_identity(told["model"]), expected, where)
    if told["max_model_len"] < expected.max_context:
        raise ConfigError(
            f"{where} has a context of {told['max_model_len']} tokens, and the run needs {expected.max_context}; "
            "start it with a larger --max-model-len, or lower engine.max_context"
        )
    reach = rope_reach(expected.model.get("rope_parameters"), expected.model.get("max_position_embeddings"))
    if reach is not None and reach.rope_type == LONG and told["max_model_len"] > reach.positions:
        raise ConfigError(
            f"{where} has a context of {told['max_model_len']} tokens, and the model's {reach.words}; vLLM takes that "
            f"other one for all; start it with --max-model-len {reach.positions} or less"
        )
    if told["logprobs_mode"] != "processed_logprobs":
        raise ConfigError(
            f"{where} tells log-probs that are {told['logprobs_mode']}, and not those of the distribution that is "
            "sampled from; start it with --logprobs-mode processed_logprobs"
        )
    if told.get("stream_interval") not in (None, 1):
        raise ConfigError(
            f"{where} holds tokens back until there are {told['stream_interval']} of a request, also while it is "
            "paused; start it without --stream-interval"
        )
    if told.get("api_processes", 1) != 1:
        raise ConfigError(
            f"{where} has {told['api_processes']} API processes, of which each knows its own requests alone, so that "
            "most aborts would end nothing; start it with --api-server-count 1"
        )
    if told.get("has_copies_elsewhere"):
        raise ConfigError(
            f"{where} is one of several servers of one data-parallel vLLM, and takes weights for its own copies of the "
            "model alone; start it without --data-parallel-external-lb, --data-parallel-hybrid-lb and "
            "--data-parallel-rank: behind one address, or as servers that know nothing of each other"
        )
    most = ids_asked_for(expected.most_kept, vocab_size)
    if -1 != told["max_logprobs"] < most:
        raise ConfigError(
            f"{where} tells {told['max_logprobs']} log-probs of a token at most, and kept sets need {most} here; "
            f"start it with --max-logprobs {most}"
        )
    if dtype_name(told["dtype"]) != expected.dtype:
        raise ConfigError(
            f"{where} computes in {told['dtype']}, and engine.dtype is {expected.dtype}; start it with "
            f"--dtype {expected.dtype}, or set engine.dtype"
        )


def world_size(told: Any, where: str) -> int:
    """Its processes with a part of the model, of all copies (data parallel): its workers answer for the first copy
    alone. `told`: of its /get_world_size. Raises ConfigError."""
    found = told.get("world_size") if isinstance(told, dict) else None
    if type(found) is not int or found < 1:
        raise ConfigError(f"{where} answers /get_world_size by {str(told)[:80]!r}; {NEWEST}")
    return found


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config that no class of transformers has, as vLLM reads one in Mistral's own format, the sizes alone: its
    other keys are spelled otherwise."""
    found = identity_of(config)
    if found.get("model_type"):
        return found
    return {key: value for key, value in found.items() if type(value) is int}


def require_answers(answer: Any, top_k: int, where: str) -> None:
    """`answer`: to a request of one token. `top_k`: ids whose log-probs it was asked for; 0: of the token alone. Raises
    ConfigError."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if choices else {}
    if not choice.get("weight_versions"):
        raise ConfigError(f"{where} does not tell which weights sampled a token: it is too old; {NEWEST}")
    content = (choice.get("logprobs") or {}).get("content") or [{}]
    if "logprob" not in content[0]:
        raise ConfigError(f"{where} does not tell the log-prob of a token; {NEWEST}")
    if len(content[0].get("top_logprobs") or ()) < top_k:
        raise ConfigError(
            f"{where} does not tell the {top_k} likeliest ids with a token, and without these nothing is trained as it "
            f"was sampled; {NEWEST}, or use top_p 1, top_k 0"
        )


def unread_of(told: Iterable[Mapping[str, Any]], version: str, name: str) -> set[str]:
    """Parameters that were not compared with what was published. `told`: by the plugin, of each process, once it has
    loaded the version. `name`: of the server. Raises WeightError where they were compared, and differ, or with another
    version."""
    unread: set[str] = set()
    for each in told:
        found = each.get("comparison") or {}
        different = found.get("different") or []
        if found.get("version") != version:
            raise WeightError(f"{name} took {version!r}, and compared {found.get('version')!r} with what was published")
        if different:
            raise WeightError(
                f"{name} took {version!r}, and {len(different)} parameters are not what was published, as "
                f"{different[0]!r}"
            )
        unread.update(found["unread"])
    return unread
