"""The table of `test_malformed.py`: models, datasets and configs that are not right, and what is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MambaForCausalLM

from headrace.models.quiet import quiet_transformers

ALL = ("check", "train", "eval", "serve")
OF_CONFIG = ("check", "train", "eval")
"""`serve` is given a model alone."""
LOADING = ("train", "eval", "serve")
"""`check` loads no weights."""


@dataclass(frozen=True)
class Job:
    """A job of its own, to be spoilt; see `make_job`."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "grpo.yaml"

    @property
    def model(self) -> Path:
        return self.folder / "model"


Spoil = Callable[[Job], None]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    spoil: Spoil
    says: str
    """Part of the message; `{folder}` is the job's, `{model}` the model's, as a quoted text."""
    commands: tuple[str, ...] = ALL
    """Those that refuse it; the others do not look at what is wrong."""


def several(*spoils: Spoil) -> Spoil:
    def spoil(job: Job) -> None:
        for one in spoils:
            one(job)

    return spoil


def content(name: str, data: str | bytes) -> Spoil:
    """The file with other content."""

    def spoil(job: Job) -> None:
        (job.folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return spoil


def cut(name: str, keep: float) -> Spoil:
    """The first part of the file."""

    def spoil(job: Job) -> None:
        data = (job.folder / name).read_bytes()
        (job.folder / name).write_bytes(data[: int(len(data) * keep)])

    return spoil


def without(*names: str) -> Spoil:
    def spoil(job: Job) -> None:
        for name in names:
            (job.folder / name).unlink()

    return spoil


def without_model(job: Job) -> None:
    shutil.rmtree(job.model)


def renamed(old: str, new: str) -> Spoil:
    def spoil(job: Job) -> None:
        (job.folder / old).rename(job.folder / new)

    return spoil


def json_keys(name: str, **changes: Any) -> Spoil:
    """The file with these keys set."""

    def spoil(job: Job) -> None:
        path = job.folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def config(**changes: Any) -> Spoil:
    return json_keys("model/config.json", **changes)


def words(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Spoil:
    """The tokenizer with another model of words."""

    def spoil(job: Job) -> None:
        path = job.model / "tokenizer.json"
        whole = json.loads(path.read_text())
        path.write_text(json.dumps({**whole, "model": change(whole["model"])}))

    return spoil


def weights(change: Callable[[Tensors], object]) -> Spoil:
    def spoil(job: Job) -> None:
        tensors = load_file(job.model / "model.safetensors")
        change(tensors)
        save_file(tensors, job.model / "model.safetensors", metadata={"format": "pt"})

    return spoil


def weight(name: str, value: torch.Tensor) -> Spoil:
    return weights(lambda tensors: tensors.update({name: value}))


def with_value(name: str, value: float) -> Spoil:
    return weights(lambda tensors: tensors[name].view(-1)[5].fill_(value))


def rows(*lines: Any) -> Spoil:
    """The dataset with these rows."""
    return content("train.jsonl", "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))


def key(dotted: str, value: Any) -> Spoil:
    """A key of the config; `{folder}` in a text is the job's."""

    def spoil(job: Job) -> None:
        whole = yaml.safe_load(job.config.read_text())
        place = whole
        *sections, name = dotted.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value.replace("{folder}", str(job.folder)) if isinstance(value, str) else value
        job.config.write_text(yaml.safe_dump(whole))

    return spoil


def mamba(job: Job) -> None:
    """Another model, of another architecture, with the job's tokenizer."""
    ids = {"vocab_size": 73, "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 1}
    made = MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **ids))
    with quiet_transformers():
        made.save_pretrained(job.model)


UP = "model.layers.0.mlp.up_proj.weight"
ST, INDEX = "model/model.safetensors", "model/model.safetensors.index.json"
TYPED = "'{}' expected int, got {}"
SIZE = "{} is {}; it must be a whole number above 0"

CONFIG_FILES = [
    Case("no config.json", without("model/config.json"), "has no config.json"),
    Case("config.json cut off", cut("model/config.json", 0.5), "config.json' is no JSON"),
    Case("config.json empty", content("model/config.json", ""), "config.json' is no JSON"),
    Case("config.json a list", content("model/config.json", "[1]"), "holds a list, and must hold a JSON object"),
    Case("config.json null", content("model/config.json", "null"), "holds a NoneType, and must hold"),
    Case("config.json of bytes", content("model/config.json", b"\xff\x00\x01"), "config.json' is no JSON"),
    Case("config.json nested", content("model/config.json", "[" * 100_000), "config.json' is no JSON"),
    Case("no model_type", config(model_type=None), "config.json of model"),
    Case("unknown model_type", config(model_type="nope"), "model type `nope`"),
    Case("an encoder-decoder", config(model_type="t5"), "it is of no causal language model"),
    Case("layers 3 of 2", config(num_hidden_layers=3, layer_types=None), "lack 11 tensors that its config.json"),
    Case("layers 1 of 2", config(num_hidden_layers=1, layer_types=None), "hold 11 tensors that its config.json"),
    Case("layers 0", config(num_hidden_layers=0, layer_types=[]), SIZE.format("num_hidden_layers", 0)),
    Case("layers -1", config(num_hidden_layers=-1, layer_types=None), "`num_hidden_layers` (-1) must be equal"),
    Case("layers '2'", config(num_hidden_layers="2"), TYPED.format("num_hidden_layers", "str (value: '2')")),
    Case("layers 1.5", config(num_hidden_layers=1.5, layer_types=None), TYPED.format("num_hidden_layers", "float")),
    Case("layers null", config(num_hidden_layers=None), TYPED.format("num_hidden_layers", "NoneType")),
    Case("layers 1000", config(num_hidden_layers=1000, layer_types=None), "is 1000, and its weights hold 24 tensors"),
    Case("layers 10^9", config(num_hidden_layers=10**9, layer_types=None), "is 1000000000; it must be 10000 or less"),
    Case("layer types of 1 layer", config(layer_types=["full_attention"]), "number of `layer_types` (1)"),
    Case("layer types unknown", config(layer_types=["a", "b"]), "`layer_types` entries must be in"),
    Case("hidden_size 'x'", config(hidden_size="x"), TYPED.format("hidden_size", "str (value: 'x')")),
    Case("hidden_size 0", config(hidden_size=0), SIZE.format("hidden_size", 0)),
    Case("hidden_size -4", config(hidden_size=-4), SIZE.format("hidden_size", -4)),
    Case("hidden_size true", config(hidden_size=True), "hidden_size"),
    Case("hidden_size 64 of 32", config(hidden_size=64), "embed_tokens.weight is [73, 32] and should be [73, 64]"),
    Case("hidden_size 10^12", config(hidden_size=10**12), "is [73, 32] and should be [73, 1000000000000]"),
    Case("heads 0", config(num_attention_heads=0), SIZE.format("num_attention_heads", 0)),
    Case("heads 8 of 4", config(num_attention_heads=8), "q_proj.weight is [32, 32] and should be [64, 32]"),
    Case("key heads 0", config(num_key_value_heads=0), SIZE.format("num_key_value_heads", 0)),
    Case("key heads 3", config(num_key_value_heads=3), "num_key_value_heads is 3; it must divide"),
    Case("head_dim 0", config(head_dim=0), SIZE.format("head_dim", 0)),
    Case("head_dim 7", config(head_dim=7), "`head_dim`=7"),
    Case("intermediate_size 0", config(intermediate_size=0), "mlp.gate_proj.weight is [64, 32] and should be [0, 32]"),
    Case("intermediate_size a list", config(intermediate_size=[1]), TYPED.format("intermediate_size", "list")),
    Case("vocab_size 0", config(vocab_size=0), SIZE.format("vocab_size", 0)),
    Case("vocab_size 50 of 73", config(vocab_size=50), "embed_tokens.weight is [73, 32] and should be [50, 32]"),
    Case("positions 0", config(max_position_embeddings=0), SIZE.format("max_position_embeddings", 0)),
    Case("positions 'x'", config(max_position_embeddings="x"), TYPED.format("max_position_embeddings", "str")),
    Case("unknown activation", config(hidden_act="nope"), "hidden_act is 'nope', which transformers does not have"),
    Case("unknown rope", config(rope_parameters={"rope_type": "nope"}), "rope_parameters.rope_type is 'nope', which"),
    Case("rope_theta 'x'", config(rope_parameters={"rope_type": "default", "rope_theta": "x"}), "config.json of model"),
    Case("norm NaN", config(rms_norm_eps=float("nan")), "rms_norm_eps is nan; it must be a number"),
    Case("dtype int8", config(dtype="int8"), "int8"),
    Case("quantised", config(quantization_config={"quant_method": "gptq", "bits": 4}), "is quantised (gptq)"),
    Case("eos outside", config(eos_token_id=500), "eos_token_id is 500; it must be a token id, from 0 to 72"),
    Case("eos 'x'", config(eos_token_id="x"), "'eos_token_id' with value 'x'"),
    Case("pad outside", config(pad_token_id=500), "config.json of model"),
    Case(
        "eos of generation nested",
        json_keys("model/generation_config.json", eos_token_id=[[1]]),
        "generation_config.json of model {model}: eos_token_id is [1]; it must be a token id",
    ),
    Case("generation cut off", cut("model/generation_config.json", 0.5), "generation_config.json' is no JSON"),
]
TOKENIZERS = [
    Case("no tokenizer", without("model/tokenizer.json", "model/tokenizer_config.json"), "has no tokenizer"),
    Case("tokenizer cut off", cut("model/tokenizer.json", 0.5), "tokenizer of model"),
    Case("tokenizer null", content("model/tokenizer.json", "null"), "tokenizer of model"),
    Case("tokenizer of unknown kind", words(lambda model: {**model, "type": "Nope"}), "tokenizer of model"),
    Case("tokenizer without words", words(lambda model: {**model, "vocab": {}}), "Missing [UNK] token"),
    Case("ids that are text", words(lambda model: {**model, "vocab": {"a": "x"}}), 'invalid type: string "x"'),
    Case("tokenizer config a list", content("model/tokenizer_config.json", "[]"), "must hold a JSON object"),
    Case("eos is no token", json_keys("model/tokenizer_config.json", eos_token="<nope>"), "eos_token_id is 73"),
    Case(
        "tokenizer of another model",
        words(lambda model: {**model, "vocab": {word: id + 500 for word, id in model["vocab"].items()}}),
        "and the model's ids go from 0 to 72: the tokenizer is of another model",
        OF_CONFIG,
    ),
]
WEIGHTS = [
    Case("no weights", without(ST), "has no weights (*.safetensors)"),
    Case("weights pickled", renamed(ST, "model/pytorch_model.bin"), "pickle files only, which can run code"),
    Case("weights of another name", renamed(ST, "model/x.safetensors"), "has no model.safetensors, and no"),
    Case("weights empty", content(ST, ""), "is cut off or damaged"),
    Case("weights cut off", cut(ST, 0.9), "is cut off or damaged"),
    Case("weights of garbage", content(ST, b"garbage" * 99), "is cut off or damaged"),
    Case("weights int8", weight(UP, torch.ones(64, 32, dtype=torch.int8)), f"({UP} is I8)"),
    Case("weights float8", weight(UP, torch.ones(64, 32).to(torch.float8_e4m3fn)), f"({UP} is F8_E4M3)"),
    Case(
        "a weight is missing",
        weights(lambda tensors: tensors.pop(UP)),
        f"lack 1 tensors that its config.json asks for ({UP})",
    ),
    Case("a weight of another shape", weight(UP, torch.ones(64, 30)), f"{UP} is [64, 30] and should be [64, 32]"),
    Case(
        "an index of a file that is not there",
        several(renamed(ST, "model/c.safetensors"), content(INDEX, '{"weight_map": {"a": "b.safetensors"}}')),
        "lacks the weights file 'b.safetensors'",
    ),
    Case("an index of nothing", several(renamed(ST, "model/c.safetensors"), content(INDEX, "[]")), "is damaged"),
    Case(
        "a NaN",
        with_value(UP, torch.nan),
        f"1 tensors of model {{model}} are not finite, with NaN or infinity in them ({UP})",
        LOADING,
    ),
    Case("an infinity", with_value("model.embed_tokens.weight", -torch.inf), "(model.embed_tokens.weight)", LOADING),
    Case("no output layer", config(tie_word_embeddings=False), "asks for (lm_head.weight)", LOADING),
]
PLACES = [
    Case(
        "an architecture without attention",
        several(mamba, key("engine.max_context", 64)),
        "a model of type 'mamba' has none such; use another architecture",
        OF_CONFIG,
    ),
    Case("no model", without_model, "does not exist; give a folder in Hugging Face format"),
    Case("a file for a model", several(without_model, content("model", "x")), "is a file; give the folder"),
    Case(
        "a folder nearly of that name", key("model.path", "{folder}/modle"), "did you mean '{folder}/model'?", OF_CONFIG
    ),
    Case("a name, and no Hub", key("model.path", "no-org/no-model"), "Hugging Face Hub cannot be reached", OF_CONFIG),
]
DATASETS = [
    Case("no dataset", without("train.jsonl"), "no dataset at {folder}/train.jsonl", OF_CONFIG),
    Case("an empty dataset", rows(), "holds no rows", OF_CONFIG),
    Case("a row of no JSON", rows({"prompt": "1+1="}, "{prompt"), "train.jsonl, line 2 is not JSON", OF_CONFIG),
    Case("no prompt", rows({"question": "x"}), "line 1 has no prompt column 'prompt' (it has 'question')", OF_CONFIG),
    Case("a prompt too long", rows({"prompt": "1" * 200}), "has 200 tokens, and the context holds 96", OF_CONFIG),
]
CONFIGS = [
    Case("an unknown key", key("trainer.optimiser.lr", 1), "unknown key trainer.optimiser", OF_CONFIG),
    Case("no YAML", content("grpo.yaml", "model: [unclosed\n"), "is not valid YAML", OF_CONFIG),
    Case("a YAML list", content("grpo.yaml", "- 1\n"), "holds no mapping", OF_CONFIG),
    Case(
        "temperature 1e-300",
        key("rollout.sampling.temperature", 1e-300),
        "rollout.sampling.temperature is 1e-300: input should be greater than or equal to 0.01",
        OF_CONFIG,
    ),
    Case("temperature 101", key("rollout.sampling.temperature", 101), "less than or equal to 100", OF_CONFIG),
    Case(
        "temperature of evaluation",
        key("evaluation.temperature", 1e-5),
        "evaluation.temperature: 1e-05 is too low to sample at; give 0 (greedy), or between 0.01 and 100",
        OF_CONFIG,
    ),
    Case(
        "responses beyond the context",
        key("rollout.sampling.max_new_tokens", 93),
        "rollout.sampling.max_new_tokens is 93, and the context holds 96 tokens, prompt and response together: no "
        "response could be so long, as the shortest prompt of {folder}/train.jsonl has 4; set "
        "rollout.sampling.max_new_tokens to 92, for which all prompts leave room",
        OF_CONFIG,
    ),
    Case(
        "evaluation beyond the context",
        key("evaluation.max_new_tokens", 500),
        "evaluation.max_new_tokens is 500",
        OF_CONFIG,
    ),
    Case("context beyond the positions", key("engine.max_context", 500), "but the model has 96 positions", OF_CONFIG),
]
CASES = [*CONFIG_FILES, *TOKENIZERS, *WEIGHTS, *PLACES, *DATASETS, *CONFIGS]
