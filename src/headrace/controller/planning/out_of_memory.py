"""What to do where memory does not suffice: said before a run starts, and again if it runs out on the way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from headrace.config import DPOConfig, RMConfig, SFTConfig, TrainConfig
from headrace.errors import HeadraceError
from headrace.models.memory_errors import is_of_the_host, memory_cause
from headrace.roles.engine_watch import EnginesLost

Config = TrainConfig | SFTConfig | RMConfig | DPOConfig

_ASKED = re.compile(r"([Tt]ried to|Unable to) allocate ([0-9.]+ ?[A-Za-z]+)")


class OutOfMemory(HeadraceError, RuntimeError):
    """Memory ran out while a run was on its way. The message says what to lower."""


def keys_of_engines(config: TrainConfig) -> dict[str, int]:
    """Those of them that `what_to_lower` names."""
    keys = {"engine.max_concurrent_sequences": config.engine.max_concurrent_sequences}
    for number, section in enumerate(config.engine.beside, start=1):
        keys[f"engine.{number}.max_concurrent_sequences"] = section.max_concurrent_sequences
    return keys | {"engine.prefill_tokens_per_step": config.engine.prefill_tokens_per_step}


def what_to_lower(config: Config, *, on_device: bool = False) -> str:
    """As `lower trainer.max_tokens_per_microbatch (4096) or engine.max_concurrent_sequences (64)`: keys that decide how
    much is held at a time, and nothing of a result, so that a run goes on with others."""
    keys = {"trainer.max_tokens_per_microbatch": config.trainer.max_tokens_per_microbatch}
    if isinstance(config, TrainConfig):
        if config.algorithm.needs_critic:
            keys["critic.max_tokens_per_microbatch"] = config.critic.max_tokens_per_microbatch
        keys |= keys_of_engines(config)
    said = _lower(keys)
    settings = [] if config.model.gradient_checkpointing else ["model.gradient_checkpointing=true"]
    if on_device and not config.trainer.optimizer.offload:
        settings.append("trainer.optimizer.offload=true")
    if not on_device and isinstance(config, TrainConfig) and config.checkpoint.background:
        settings.append("checkpoint.background=false")
    return f"{said}, set {' and '.join(settings)}" if settings else said


def _lower(keys: Mapping[str, object]) -> str:
    named = [f"{key} ({value})" for key, value in keys.items()]
    return "lower " + (" or ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else named[0])


@contextmanager
def told(config: Config, *, resumes: bool = True) -> Iterator[None]:
    """Whatever memory's end raises within becomes OutOfMemory. `resumes`: the command has `--resume`."""
    go_on = ", and go on with --resume: what was journalled and checkpointed is there" if resumes else ""
    with _told(lambda on_device: what_to_lower(config, on_device=on_device) + go_on):
        yield


@contextmanager
def told_of(keys: Mapping[str, object]) -> Iterator[None]:
    """As `told`, of a command that trains nothing. `keys`: what decides how much it holds at a time, and their
    values."""
    with _told(lambda on_device: _lower(keys)):
        yield


@contextmanager
def _told(mend: Callable[[bool], str]) -> Iterator[None]:
    """`mend`: given whether it was a device's memory."""
    try:
        yield
    except Exception as error:
        cause = memory_cause(error)
        if cause is None:
            raise
        asked = _ASKED.search(str(cause))
        wanted = f", with {asked[2]} more asked for" if asked else ""
        on_device = not is_of_the_host(cause)
        place = _place(cause) if on_device else ""
        who = f" ({str(error).partition(': ')[0]})" if isinstance(error, EnginesLost) else ""
        raise OutOfMemory(f"memory ran out{place}{wanted}{who}; {mend(on_device)}") from error


def _place(error: BaseException) -> str:
    """Of a device. Only torch's allocator says which it was."""
    found = re.search(r"GPU (\d+)", str(error))
    return f" on cuda:{found[1]}" if found else " on a CUDA device"
