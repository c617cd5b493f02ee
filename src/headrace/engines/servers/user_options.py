"""The user's own options of a server, and options as words of a command."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.config.errors import ConfigError
from headrace.engines.servers.launch import ServerLaunch


@dataclass(frozen=True, slots=True)
class SetBy:
    """An option that a key of the config sets."""

    key: str

    def __str__(self) -> str:
        return f"is set by {self.key}"


@dataclass(frozen=True, slots=True)
class NotGiven:
    """An option that nobody may give."""

    why: str

    def __str__(self) -> str:
        return f"is not to be given: {self.why}"


_ROUNDED = NotGiven("weights are rounded once they are loaded, which the swap check takes for a fault")
_ANOTHER = NotGiven("it would be another model than the one that is trained")
_SAMPLED = NotGiven("what is sampled would not be the policy's own")
_OLD_CACHE = NotGiven("keys and values of older weights may come back from where it keeps them")
_ADAPTERS = NotGiven("all weights are trained, and no request names an adapter")
UNSOUND: Mapping[str, NotGiven] = {
    "load_format": NotGiven("version 0 is what is loaded from model.path, as safetensors"),
    "quantization": _ROUNDED,
    "quantization_config": _ROUNDED,
    "modelopt_quant": _ROUNDED,
    "hf_overrides": _ANOTHER,
    "hf_config_path": _ANOTHER,
    "json_model_override_args": _ANOTHER,
    "revision": _ANOTHER,
    "enable_lora": _ADAPTERS,
    "lora_paths": _ADAPTERS,
    "logits_processors": _SAMPLED,
    "preferred_sampling_params": _SAMPLED,
    "speculative_accept_threshold_single": _SAMPLED,
    "speculative_accept_threshold_acc": _SAMPLED,
    "watermark_config": _SAMPLED,
    "enable_watermark": _SAMPLED,
    "kv_transfer_config": _OLD_CACHE,
    "hicache_storage_backend": _OLD_CACHE,
    "enable_lmcache": _OLD_CACHE,
}
"""Options of vLLM and SGLang under which tokens, log-probs or versions would not be what they are taken for. Version 0
is served as the server has loaded it, and no check has looked at it."""


_WHOLE = frozenset({"watermark"})
"""Options that begin as one of ours does, and are another: of vLLM, pages of its KV cache that stay free."""


def user_options(launch: ServerLaunch, ours: Mapping[str, SetBy | NotGiven]) -> dict[str, object]:
    """By the server's names. `ours`: those that are not the user's to give, beside UNSOUND. Raises ConfigError."""
    ours = {**UNSOUND, **ours}
    given = {name.replace("-", "_"): value for name, value in launch.args.items()}
    for name, value in given.items():
        if value is None:
            raise ConfigError(f"engine.args.{name} is null, which is no value of an option; give one, or leave it out")
        option = name.partition(".")[0]  # vLLM takes OPTION.KEY for a key of what the option has
        if option in ours:
            raise ConfigError(f"engine.args.{name} {ours[option]}; leave it out")
        for full in ours:
            if full.startswith(option) and option not in _WHOLE:  # which the server would take for it
                raise ConfigError(f"engine.args.{name} is short for {full}, which {ours[full]}; leave it out")
    return given


def check_switches(given: Mapping[str, object], own: Mapping[str, object], server: str) -> None:
    """Of a server with switches that are given or left out: one that is False says nothing to it, unless it takes back
    one of Headrace's `own`, and a name that it does not know would pass. Raises ConfigError."""
    for name, value in given.items():
        if value is False and name not in own:
            raise ConfigError(
                f"engine.args.{name} is false, for which {server} has no word: its switches are off unless they are "
                f"given; leave it out, or give no_{name}: true if it has that"
            )


def title(launch: ServerLaunch, name: str, *distributions: str) -> str:
    """The server's name, with the version of the first of these distributions that is installed where it is."""
    packages = Path(launch.python).parent.parent
    for each in distributions:
        for found in packages.glob(f"lib/python3*/site-packages/{each}-*.dist-info"):
            return f"{name} {found.name.removesuffix('.dist-info').removeprefix(each + '-')}"
    return name


def flags(options: Mapping[str, object], *, negates: bool, json_lists: Collection[str] = ()) -> list[str]:
    """`negates`: what is False is `--no-NAME`, and else left out, as None is. A list is a word for each item; JSON
    where it is of one of `json_lists`, or of a key of an option, as OPTION.KEY."""
    words: list[str] = []
    for name, value in options.items():
        option, dot, key = name.partition(".")
        flag = "--" + option.replace("_", "-") + dot + key
        match value:
            case True:
                words.append(flag)
            case False:
                words += ["--no-" + flag[2:]] * negates
            case None:
                pass
            case list() if option not in json_lists and not key:
                words += [flag, *map(str, value)]
            case dict() | list():
                words += [flag, json.dumps(value)]
            case _:
                words += [flag, str(value)]
    return words
