"""Whether an SGLang server is the one that a run needs, as it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.config.errors import ConfigError
from headrace.engines.servers.dialect import Expected

NEWEST = "start SGLang 0.5.23"
_SAMPLING = {"/model_info": "GET", "/generate": "POST"}
_MOTIONS = {"/abort_request": "POST", "/pause_generation": "POST", "/continue_generation": "POST"}
_OF_FOLDER = {"/update_weights_from_disk": "POST"}
_OF_GROUP = {
    "/init_weights_update_group": "POST",
    "/destroy_weights_update_group": "POST",
    "/begin_weight_update": "POST",
    "/update_weights_from_distributed": "POST",
    "/end_weight_update": "POST",
}
ADMIN_ROUTES = frozenset((*_MOTIONS, *_OF_FOLDER, *_OF_GROUP))
"""At which it asks for its --admin-api-key, where it has one; at the others for its --api-key."""
_OPTIONS = {"skip_tokenizer_init": True, "stream_interval": 1, "tokenizer_worker_num": 1}
_UNPAUSED = {"pp_size": (1, "with --pp-size 1"), "enable_pdmux": (False, "without --enable-pdmux")}
"""Values under which its scheduler goes by a loop that looks whether it is paused, and how it is started so."""
PROBE_TEMPERATURE = 1e4
"""Of the first token: whatever the model, all ids are equally likely then, but for a few thousandths."""
PROBE_IDS = 32
"""Of which log-probs are compared where those of the first token are not as they should be."""
_NEAR = 0.1
"""Nats: of bfloat16 the roundings of log-probs around 12 are a third of it; a vocabulary that is larger by a tenth has
log-probs that are so much lower."""
_LOWEST = -50.0
_UNSCALED = "SGLANG_RETURN_ORIGINAL_LOGPROB"


def routes(*, by_group: bool) -> Mapping[str, str]:
    """Those that it is asked by once it has been met. `by_group`: weights come by gloo."""
    return _SAMPLING | _MOTIONS | (_OF_GROUP if by_group else _OF_FOLDER)


def require_fits(info: Mapping[str, Any], expected: Expected, where: str) -> None:
    """`info`: its `/server_info`. `where`: its name and address. Raises ConfigError."""
    longest = info.get("max_req_input_len")
    if not isinstance(longest, int):
        raise ConfigError(f"{where} does not tell how long a prompt may be; {NEWEST}")
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
    for option, (needed, mend) in _UNPAUSED.items():
        if info.get(option, needed) != needed:
            raise ConfigError(
                f"{where} has {option} {info[option]}, with which it goes on sampling while it is paused; start it "
                f"{mend}"
            )
    if info.get("enable_watermark"):
        raise ConfigError(
            f"{where} has a watermark in what it samples, which is not the policy's own then; start it without "
            "--enable-watermark"
        )
    if info.get("dtype") != expected.dtype:
        raise ConfigError(
            f"{where} computes in {info.get('dtype')!r}, and engine.dtype is {expected.dtype}; start it with "
            f"--dtype {expected.dtype}, or set engine.dtype"
        )


def require_one_copy(info: Mapping[str, Any], where: str) -> int:
    """How many processes take weights over a group. Raises ConfigError for copies of the model, which none of them
    has."""
    if info.get("dp_size", 1) != 1:
        raise ConfigError(
            f"{where} has dp_size {info['dp_size']}, and takes no weights by gloo then; start it with --dp-size 1"
        )
    return int(info.get("tp_size", 1))


def require_answers(answer: Any, expected: Expected, where: str) -> None:
    """`answer`: to a request of one token under top-k, at PROBE_TEMPERATURE. What its log-prob is of:
    `is_of_vocabulary`. Raises ConfigError."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict) or "weight_versions" not in meta or not meta.get("output_token_logprobs"):
        raise ConfigError(f"{where} does not tell which weights sampled a token: it is too old; {NEWEST}")
    tells = meta.get("output_token_sampling_mask") and meta.get("output_token_sampling_logprobs")
    if expected.truncates and not tells:
        raise ConfigError(
            f"{where} does not tell which tokens top-p and top-k keep, and without that nothing is trained as it was "
            f"sampled; {NEWEST}, or use top_p 1, top_k 0"
        )


def is_of_vocabulary(answer: Mapping[str, Any], vocab_size: int) -> bool:
    """Whether the token of the `answer` (see `require_answers`) has the log-prob of one of so many ids that are equally
    likely, or one that is no number: weights that were never whole give it, and new ones come."""
    return not abs(_of_token(answer) + math.log(vocab_size)) > _NEAR


def not_of_vocabulary(answer: Mapping[str, Any], of_ids: Any, vocab_size: int, where: str) -> str:
    """Why it may not be so. `of_ids`: the answer to the same request with the log-probs of `PROBE_IDS` ids; None if
    there is none. Those before temperature differ from id to id, and those of another vocabulary do not."""
    told = _of_token(answer)
    about = f"of a vocabulary of about {round(math.exp(-max(told, _LOWEST))):,} ids"
    found = _of_ids(of_ids)
    if not found:
        return (
            f"{where} gives a token a log-prob of {told:.2f} where {vocab_size:,} ids are equally likely: it has "
            f"another model, {about}, or tells log-probs before temperature; start it with the run's model, and "
            f"without {_UNSCALED}"
        )
    if max(found) - min(found) > _NEAR:
        return (
            f"{where} tells log-probs before temperature, and not those of the distribution that is sampled from; "
            f"start it without {_UNSCALED}"
        )
    return (
        f"{where} has another model: its log-probs are {about}, and that of model.path has {vocab_size:,}; start it "
        "with the run's model"
    )


def _of_token(answer: Mapping[str, Any]) -> float:
    """NaN for the null by which it tells what is no number."""
    told = answer["meta_info"]["output_token_logprobs"][0][0]
    return math.nan if told is None else float(told)


def _of_ids(answer: Any) -> list[float]:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    told = meta.get("output_token_ids_logprobs") if isinstance(meta, dict) else None
    return [float(each[0]) for each in told[0] if each[0] is not None] if told and told[0] else []
