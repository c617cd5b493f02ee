"""Whether an SGLang server is the one that a run needs, as it tells."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError
from headrace.engines.servers.dialect import Expected

_NEWEST = "start SGLang 0.5.23"
_OPTIONS = {"skip_tokenizer_init": True, "stream_interval": 1, "tokenizer_worker_num": 1}
PROBE_TEMPERATURE = 100.0
"""Of the first token: whatever the model, all ids are about equally likely then."""
_NEAR = 1.0
"""Nats."""


def require_fits(info: Mapping[str, Any], expected: Expected, where: str) -> None:
    """`info`: its `/server_info`. `where`: its name and address. Raises ConfigError. Which model it has is seen where
    the folder that it was started with can be read; elsewhere the swap check tells."""
    there = _config_of(str(info.get("model_path", "")))
    for name, value in expected.model.items():
        if there.get(name, value) != value:
            raise ConfigError(
                f"{where} has another model: its {name} is {there[name]!r}, and that of model.path {value!r}; "
                "start it with the run's model"
            )
    longest = info.get("max_req_input_len")
    if not isinstance(longest, int):
        raise ConfigError(f"{where} does not tell how long a prompt may be; {_NEWEST}")
    if longest < expected.max_context - 1:
        raise ConfigError(
            f"{where} takes {longest} tokens, and with a context of {expected.max_context} a prompt has up to "
            f"{expected.max_context - 1}; start it with a --context-length that is 6 larger than engine.max_context, "
            f"or lower that to {longest + 1}"
        )
    for option, needed in _OPTIONS.items():
        if info.get(option) != needed:
            flag = "--" + option.replace("_", "-") + ("" if needed is True else f" {needed}")
            raise ConfigError(
                f"{where} has {option} {info.get(option)}, with which tokens may be on their way when it says that all "
                f"were told; start it with {flag}"
            )
    if info.get("dtype") != expected.dtype:
        raise ConfigError(
            f"{where} computes in {info.get('dtype')!r}, and engine.dtype is {expected.dtype}; start it with "
            f"--dtype {expected.dtype}, or set engine.dtype"
        )


def require_one_copy(info: Mapping[str, Any], where: str) -> int:
    """How many processes take weights over a group. Raises ConfigError for copies of the model, and parts of it, that
    none of them has."""
    for option in ("dp_size", "pp_size"):
        if info.get(option, 1) != 1:
            flag = "--" + option.replace("_", "-")
            raise ConfigError(
                f"{where} has {option} {info[option]}, and takes no weights by gloo then; start it with {flag} 1"
            )
    return int(info.get("tp_size", 1))


def require_answers(answer: Any, expected: Expected, vocab_size: int, where: str) -> None:
    """`answer`: to a request of one token under top-k, at PROBE_TEMPERATURE. Raises ConfigError."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict) or "weight_versions" not in meta or not meta.get("output_token_logprobs"):
        raise ConfigError(f"{where} does not tell which weights sampled a token: it is too old; {_NEWEST}")
    if abs(meta["output_token_logprobs"][0][0] + math.log(vocab_size)) > _NEAR:
        raise ConfigError(
            f"{where} tells log-probs before temperature, and not those of the distribution that is sampled from; "
            "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
        )
    tells = meta.get("output_token_sampling_mask") and meta.get("output_token_sampling_logprobs")
    if expected.truncates and not tells:
        raise ConfigError(
            f"{where} does not tell which tokens top-p and top-k keep, and without that nothing is trained as it was "
            f"sampled; {_NEWEST}, or use top_p 1, top_k 0"
        )


def _config_of(path: str) -> Mapping[str, Any]:
    """The config of the model in a folder, as far as it is written there: what it says nothing of is as its kind of
    model has it."""
    try:
        config = json.loads((Path(path) / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, dict) else config
    rope = config.get("rope_parameters")
    return {**config, "rope_theta": rope["rope_theta"]} if isinstance(rope, dict) and "rope_theta" in rope else config
