"""Models and tokenizers in Hugging Face format: read under one lock, never running code that they bring along."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.config import ConfigError
from headrace.models.folder import check_tokenizer, check_weights, find_model_folder
from headrace.models.quiet import quiet_transformers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")

_LOADING = threading.Lock()
"""`from_pretrained` builds on the meta device by switching process-wide state, so two at once corrupt each other."""


def resolve_device(name: str) -> torch.device:
    """`auto` (CUDA where there is one, else CPU), `cpu`, `cuda` or `cuda:N`. Raises ConfigError."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices; "
            "use auto or cpu, or install a CUDA build of torch"
        )
    return device


def load_causal_lm(path: str | Path, *, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """The causal language model at `path` (folder or Hub name), in eval mode, every weight read from the file.

    No other thread may train or build a model of this process meanwhile: loading switches process-wide state.
    Raises ConfigError if there is none, or it does not fit its own config.
    """
    from transformers import AutoModelForCausalLM

    check_weights(str(path))

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )

    model, report = _read(path, "model", load)
    if missing := sorted(report["missing_keys"]):
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ConfigError(
            f"the weights of model {str(path)!r} lack {len(missing)} tensors that its config.json asks for ({shown}); "
            "give a whole causal language model"
        )
    return model.to(device).eval()


def load_value_model(path: str | Path, *, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """A classifier of tokens into one class, the value: one that was saved, or a language model with a new head of 0.

    As `load_causal_lm` otherwise.
    """
    import torch
    from transformers import AutoModelForTokenClassification

    check_weights(str(path))

    def load() -> Any:
        return AutoModelForTokenClassification.from_pretrained(
            str(path),
            dtype=dtype,
            num_labels=1,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )

    model, report = _read(path, "value model", load)
    heads = ("score.", "classifier.")
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith(heads)):
        raise ConfigError(
            f"the weights of model {str(path)!r} lack {len(missing)} tensors that its config.json asks for "
            f"({', '.join(missing[:3])}); give a whole model"
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in report["missing_keys"]:
                parameter.zero_()
    return model.to(device).eval()


def load_reward_model(path: str | Path, *, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """A sequence classifier of one class as a classifier of tokens, so that it scores packed samples: the inverse of
    `save_reward_model`. As `load_causal_lm` otherwise."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    check_weights(str(path))
    check_reward_model(path)

    def load() -> Any:
        return AutoModelForSequenceClassification.from_pretrained(
            str(path), dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )

    def convert() -> PreTrainedModel:
        model = AutoModelForTokenClassification.from_config(classifier.config, dtype=dtype)
        head = "score" if hasattr(model, "score") else "classifier"
        weights = {name.replace("score.weight", f"{head}.weight"): t for name, t in classifier.state_dict().items()}
        if f"{head}.bias" in model.state_dict():
            weights[f"{head}.bias"] = torch.zeros(1, dtype=dtype)
        model.load_state_dict(weights)
        return model

    classifier, report = _read(path, "reward model", load)
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"the weights of reward model {str(path)!r} lack {len(missing)} tensors that its config.json asks for "
            f"({', '.join(missing[:3])}); give a sequence classifier of one class, as `headrace rm` leaves it"
        )
    model: Any = _read(path, "reward model", convert)
    return model.to(device).eval()


def check_reward_model(path: str | Path) -> None:
    """Raises ConfigError unless the config at `path` is of a model that gives one score."""
    config = read_model_config(path)
    if config.num_labels != 1:
        raise ConfigError(
            f"model {str(path)!r} has {config.num_labels} classes, and a reward model has one, whose logit is the "
            "score; give a sequence classifier of one class, as `headrace rm` leaves it"
        )


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer at `path` (folder or Hub name). Raises ConfigError."""
    from transformers import AutoTokenizer

    check_tokenizer(str(path))
    tokenizer = _read(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(str(path), trust_remote_code=False))
    # Its own warning of a text longer than the model: whoever encodes one says so with the place and the mend.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def read_model_config(path: str | Path) -> PreTrainedConfig:
    """The Hugging Face config at `path` (folder or Hub name). Raises ConfigError."""
    from transformers import AutoConfig

    find_model_folder(str(path))
    return _read(path, "config", lambda: AutoConfig.from_pretrained(str(path), trust_remote_code=False))


def read_generation_stops(path: str | Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end a response: the generation config's, else the model config's, and the tokenizer's, each once."""
    from transformers import GenerationConfig

    folder = find_model_folder(str(path))
    config = read_model_config(path)
    stops: list[int | list[int] | None] = [getattr(config.get_text_config(), "eos_token_id", None)]
    if folder is None or (folder / "generation_config.json").is_file():
        generation = _read(path, "generation config", lambda: GenerationConfig.from_pretrained(str(path)))
        stops = [generation.eos_token_id] if generation.eos_token_id is not None else stops
    stops.append(tokenizer.eos_token_id)
    flat = [i for stop in stops if stop is not None for i in ([stop] if isinstance(stop, int) else stop)]
    return tuple(dict.fromkeys(flat))


def count_parameters(config: PreTrainedConfig) -> int:
    """Parameters of the causal language model that `config` describes, tied ones once. Allocates none of them."""
    import torch
    from transformers import AutoModelForCausalLM

    with _LOADING, torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(parameter.numel() for parameter in model.parameters())


def save_pretrained_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, path: str | Path) -> None:
    """Write a folder that `transformers` loads: config, safetensors in the model's dtype, and the tokenizer."""
    with _LOADING, quiet_transformers():
        model.save_pretrained(str(path))
        if tokenizer is not None:
            tokenizer.save_pretrained(str(path))


def save_reward_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, path: str | Path) -> None:
    """Write a model of `load_value_model` as a sequence classifier of one class, as reward models commonly are.

    Such a classifier reads its score at the last token that is not padding, and has no bias.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(model.config)
    config.num_labels = 1
    if config.pad_token_id is None and tokenizer is not None:
        config.pad_token_id = tokenizer.pad_token_id
    weights = {
        name.replace("classifier.weight", "score.weight"): tensor
        for name, tensor in model.state_dict().items()
        if name not in ("score.bias", "classifier.bias")
    }
    with _LOADING, quiet_transformers():
        classifier = AutoModelForSequenceClassification.from_config(config, dtype=model.dtype)
        classifier.load_state_dict(weights)
    save_pretrained_folder(classifier, tokenizer, path)


def _read(path: str | Path, what: str, read: Callable[[], T]) -> T:
    """Run `read` under the lock; what goes wrong with files that a user gave is a ConfigError."""
    from safetensors import SafetensorError

    faults = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError)
    with _LOADING, quiet_transformers():
        try:
            return read()
        except faults as error:
            raise ConfigError(f"{what} of {str(path)!r} cannot be read: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            "it needs code that comes with the model, which Headrace never runs; "
            "use an architecture that transformers itself has"
        )
    if isinstance(error, OSError) and "huggingface.co" in text:
        return (
            "there is no such folder here, and the Hugging Face Hub did not give a model of that name; check the "
            "spelling, the network, and for a private model your token"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}; check the files, or save the model again"
