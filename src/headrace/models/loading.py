"""Models and tokenizers in Hugging Face format: read under one lock, never running code that they bring along."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.config import ConfigError
from headrace.models.config_file import check_config, check_layers, check_stops, key_of, read_object
from headrace.models.fit import check_headers, check_report
from headrace.models.folder import check_weights, find_model_folder, has_vocabulary, no_tokenizer
from headrace.models.memory_errors import memory_cause
from headrace.models.quiet import quiet_transformers
from headrace.models.weight_files import read_headers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")
_LONGEST = 300
"""Characters of another library's message."""

_LOADING = threading.Lock()
"""`from_pretrained` builds on the meta device by switching process-wide state, so two at once corrupt each other."""


def resolve_device(name: str, *, given: bool = False) -> torch.device:
    """`auto` (CUDA where there is one, else CPU), `cpu`, `cuda` or `cuda:N`. `given`: of a worker elsewhere, to which a
    CUDA device is given: it sees no other. Raises ConfigError."""
    import torch

    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", name):
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu, cuda or cuda:N")
    if given and name != "cpu":
        return torch.device("cuda")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices; "
            "use auto or cpu, or install a CUDA build of torch"
        )
    return device


def auto_class(*, gives_values: bool = False) -> Any:
    """transformers' class that makes a language model; with `gives_values` a classifier of tokens, into one class: a
    value or a score of each."""
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    return AutoModelForTokenClassification if gives_values else AutoModelForCausalLM


def load_causal_lm(path: str | Path, *, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """The causal language model at `path` (folder or Hub name), in eval mode, every weight read from the file.

    No other thread may train or build a model of this process meanwhile: loading switches process-wide state.
    Raises ConfigError if there is none, if it does not fit its own config, or if a weight is not finite.
    """
    return _load(auto_class(), path, "model", dtype, device, head=lambda name: False)


def load_value_model(path: str | Path, *, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """A classifier of tokens into one class, the value: one that was saved, or a language model with a new head of 0.

    As `load_causal_lm` otherwise.
    """
    kind = auto_class(gives_values=True)
    return _load(kind, path, "value model", dtype, device, head=is_value_head, num_labels=1)


def is_value_head(name: str) -> bool:
    """Of a weight that a value model may lack, or have of another kind of model."""
    return name.startswith(("score.", "classifier.", "lm_head."))


def load_reward_model(path: str | Path, *, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """A sequence classifier of one class, as `headrace rm` writes it, as a classifier of tokens, so that it scores
    packed samples. As `load_causal_lm` otherwise."""
    import torch
    from transformers import AutoModelForSequenceClassification

    check_reward_model(path)

    def convert() -> PreTrainedModel:
        model = auto_class(gives_values=True).from_config(classifier.config, dtype=dtype)
        head = "score" if hasattr(model, "score") else "classifier"
        weights = {name.replace("score.weight", f"{head}.weight"): t for name, t in classifier.state_dict().items()}
        if f"{head}.bias" in model.state_dict():
            weights[f"{head}.bias"] = torch.zeros(1, dtype=dtype)
        model.load_state_dict(weights)
        return model

    classifier = _load(AutoModelForSequenceClassification, path, "reward model", dtype, "cpu", head=lambda name: False)
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

    named = _read_object(path, "tokenizer_config.json").get("tokenizer_class")
    is_only_named = not has_vocabulary(str(path), named)

    def load() -> Any:
        loaded = AutoTokenizer.from_pretrained(_place(path), trust_remote_code=False)
        if is_only_named:
            _check_has_its_files(path, named, loaded)
        loaded.decode(loaded("What can be read may fail when it is used.")["input_ids"])
        return loaded

    try:
        tokenizer = _read(path, "tokenizer", load)
    except ConfigError as error:
        if is_only_named and (cause := error.__cause__) is not None and "trust_remote_code" not in str(cause):
            raise no_tokenizer(
                str(path), f"tokenizer_config.json names {named}, which does not load: {_first_line(cause)}"
            ) from cause
        raise
    # Its own warning of a text longer than the model: whoever encodes one says so with the place and the mend.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _check_has_its_files(path: str | Path, named: object, loaded: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError if the tokenizer is of a class that reads files, and none of them is there: transformers makes
    one without words then. For some types of models it takes a class of its own, whichever is named."""
    files = list(getattr(loaded, "vocab_files_names", {}).values())
    if files and not any((Path(_place(path)) / name).is_file() for name in files):
        raise no_tokenizer(
            str(path),
            f"tokenizer_config.json names {named}, transformers loads {type(loaded).__name__} beside this model, and "
            f"none of the files of that is there: {', '.join(files)}",
        )


def read_model_config(path: str | Path) -> PreTrainedConfig:
    """The Hugging Face config at `path` (folder or Hub name). Raises ConfigError; see also `check_config`."""
    from transformers import AutoConfig

    raw = _read_object(path, "config.json")
    check_layers(str(path), raw)
    config = _read(path, "config.json", lambda: AutoConfig.from_pretrained(_place(path), trust_remote_code=False))
    check_config(str(path), config)
    return config


def check_model(path: str | Path) -> None:
    """Raises ConfigError unless the files of the model at `path`, a causal language model or one with another head, fit
    together, as far as can be told without reading a weight."""
    check_weights(str(path))
    config = read_model_config(path)
    folder = find_model_folder(str(path))
    if folder is None:
        return  # its weights are not here yet
    stored = read_headers(folder)
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > len(stored):  # to build so many could take hours
        raise ConfigError(
            f"config.json of model {str(path)!r}: num_hidden_layers is {layers}, and its weights hold {len(stored)} "
            "tensors in all; mend config.json, or give the weights that belong to it"
        )
    check_headers(str(path), outline(config, str(path)), stored)


def read_generation_stops(path: str | Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end a response: the generation config's, else the model config's, and the tokenizer's, each once."""
    from transformers import GenerationConfig

    folder = find_model_folder(str(path))
    text = read_model_config(path).get_text_config()
    vocab_size = getattr(text, "vocab_size", None)
    stops: list[int | list[int] | None] = [getattr(text, "eos_token_id", None)]
    if folder is None or (folder / "generation_config.json").is_file():
        _read_object(path, "generation_config.json")
        generation = _read(path, "generation_config.json", lambda: GenerationConfig.from_pretrained(_place(path)))
        check_stops(str(path), "generation_config.json", generation.eos_token_id, vocab_size)
        stops = [generation.eos_token_id] if generation.eos_token_id is not None else stops
    check_stops(str(path), "the tokenizer", tokenizer.eos_token_id, vocab_size)
    stops.append(tokenizer.eos_token_id)
    flat = [i for stop in stops if stop is not None for i in ([stop] if isinstance(stop, int) else stop)]
    return tuple(dict.fromkeys(flat))


def count_parameters(config: PreTrainedConfig, *, gives_values: bool = False) -> int:
    """Parameters of the causal language model that `config` describes, or with `gives_values` of that of
    `load_value_model`, tied ones once. Allocates none of them.

    Raises ConfigError if it describes none.
    """
    return sum(parameter_sizes(config, gives_values=gives_values))


def parameter_sizes(config: PreTrainedConfig, *, gives_values: bool = False) -> list[int]:
    """Numbers in each; see `count_parameters`."""
    if gives_values:
        config = copy.deepcopy(config)
        config.num_labels = 1
    described = outline(config, str(config.name_or_path), auto_class(gives_values=gives_values))
    return [parameter.numel() for parameter in described.parameters()]


def save_pretrained_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, path: str | Path) -> None:
    """Write a folder that `transformers` loads: config, safetensors in the model's dtype, and the tokenizer."""
    with _LOADING, quiet_transformers():
        model.save_pretrained(str(path))
        if tokenizer is not None:
            tokenizer.save_pretrained(str(path))


def like(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """A model like this one with other weights: all of them, by name, in `dtype`, whose memory becomes its own; without
    any it has no memory. No other thread may train or build a model of this process meanwhile.

    One that is none of transformers' says of which class it was `made_from`.
    """
    import torch

    # FSDP2 makes a class of its own of the model's.
    classes = getattr(model, "made_from", type(model)).__mro__
    kind: Any = next(each for each in classes if each.__module__.startswith("transformers."))
    with _LOADING, quiet_transformers(), torch.device("meta"):
        other: PreTrainedModel = kind._from_config(copy.deepcopy(model.config), dtype=dtype)
    if tensors:
        other.load_state_dict(dict(tensors), assign=True, strict=False)
        other.tie_weights()
    if getattr(model, "generation_config", None) is not None:
        other.generation_config = model.generation_config
    return other


def reward_model_outline(
    config: PreTrainedConfig, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """What a model of `load_value_model` that has this config is saved as: a sequence classifier of one class in
    `dtype`, as reward models commonly are. Without memory.

    Such a classifier reads its score at the last token that is not padding, and has no bias. Where the tokenizer pads
    with its end of sequence, which is the token that was scored, it knows no padding: it then reads the last token,
    and takes one sequence at a time.
    """
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(config)
    config.num_labels = 1
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id == tokenizer.eos_token_id:
        config.pad_token_id = None
    return outline(config, str(config.name_or_path), AutoModelForSequenceClassification, dtype=dtype)


def _load(
    kind: Any,
    path: str | Path,
    what: str,
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    head: Callable[[str], bool],
    **options: Any,
) -> PreTrainedModel:
    """A model of class `kind` with every weight from its files, but those of a `head` that they lack: they are 0."""
    import torch

    check_weights(str(path))
    options |= attention_of(read_model_config(path))

    def load() -> Any:
        return kind.from_pretrained(
            _place(path),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported, and refused with their names
            **options,
        )

    from headrace.models.device_settings import settle
    from headrace.models.finite_weights import check_finite

    model, report = _read(path, what, load)
    check_report(str(path), model, report, head=head)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in report["missing_keys"]:
                parameter.zero_()
    settle(torch.device(device))
    loaded: PreTrainedModel = model.to(device).eval()
    check_finite(str(path), loaded.named_parameters())
    return loaded


def attention_of(config: PreTrainedConfig) -> dict[str, str]:
    """What transformers is to be told of the model's attention."""
    # transformers up to 5.17 takes fused attention for these too, and it leaves the caps out.
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if capped else {}


def outline(config: PreTrainedConfig, path: str, kind: Any = None, **options: Any) -> PreTrainedModel:
    """The model of class `kind` that `config` describes, without weights; a causal language model unless given. Raises
    ConfigError."""
    import torch

    def build() -> Any:
        try:
            with torch.device("meta"):
                return (kind or auto_class()).from_config(config, trust_remote_code=False, **options)
        except KeyError as error:  # of a table of what transformers has
            value = error.args[0] if error.args else None
            if (key := key_of(config, value)) is None:
                raise
            raise ValueError(f"{key} is {value!r}, which transformers does not have") from error

    return cast("PreTrainedModel", _read(path, "config.json", build))


def _read_object(path: str | Path, name: str) -> dict[str, Any]:
    """The JSON object in the file of this name; empty if the model has none here. Raises ConfigError."""
    folder = find_model_folder(str(path))
    return {} if folder is None or not (folder / name).is_file() else read_object(folder / name)


def _place(path: str | Path) -> str:
    """What transformers is to read: a folder, or a name on the Hub."""
    return str(find_model_folder(str(path)) or path)


def _read(path: str | Path, what: str, read: Callable[[], T]) -> T:
    """Run `read` under the lock; what goes wrong with files that a user gave is a ConfigError."""
    with _LOADING, quiet_transformers():
        try:
            return read()
        except ConfigError:
            raise
        except Exception as error:  # of any kind: the libraries take for granted that the files are right
            if memory_cause(error) is not None:
                raise  # the files are as they should be
            raise ConfigError(f"{what} of model {str(path)!r} cannot be used: {_explain(error)}") from error


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
    if "Unrecognized configuration class" in text and ("ForTokenClass" in text or "ForSequenceClass" in text):
        return "transformers has no classifier of its type, as a critic and a reward model are; give another model"
    if "Unrecognized configuration class" in text:
        return "it is of no causal language model; give one"
    return f"{_first_line(error)}; check the files, or save the model again"


def _first_line(error: BaseException) -> str:
    """Of its message, with its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    # Failed validations say first which one, and last what for.
    first = lines[-1] if type(error).__name__.startswith("StrictDataclass") else lines[0]
    kind = "" if re.match(r"\w*Error: ", first) else f"{type(error).__name__}: "
    return f"{kind}{first[:_LONGEST].rstrip(': ')}"
