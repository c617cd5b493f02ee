from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
import torch
from models_helpers import CONFIGS, tiny_model, tiny_tokenizer
from safetensors.torch import load_file, save_file
from transformers import ByT5Tokenizer
from transformers.utils import logging

from headrace.config import ConfigError
from headrace.models.folder import check_weights
from headrace.models.loading import (
    check_model,
    count_parameters,
    load_causal_lm,
    load_tokenizer,
    load_value_model,
    read_generation_stops,
    read_model_config,
    resolve_device,
    save_pretrained_folder,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    save_pretrained_folder(tiny_model("qwen3"), tiny_tokenizer(), path)
    return path


def load(path: Path | str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return load_causal_lm(path, dtype=dtype, device="cpu")


def test_a_saved_folder_loads_back_the_same(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    model = load(folder)
    for (name, a), (_, b) in zip(model.named_parameters(), tiny_model("qwen3").named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert not model.training
    assert load_tokenizer(folder).decode([3, 4]) == "ab"
    assert read_model_config(folder).hidden_size == 32
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", ""), "transformers keeps quiet"
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (verbosity, bars)


def test_dtype_is_as_asked(folder: Path) -> None:
    assert {p.dtype for p in load(folder, torch.bfloat16).parameters()} == {torch.bfloat16}


def test_concurrent_loads_do_not_disturb_each_other(folder: Path) -> None:
    models: list[torch.nn.Module] = []
    threads = [threading.Thread(target=lambda: models.append(load(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(models) == 4
    for model in models:
        assert all(p.device.type == "cpu" for p in model.parameters())


def test_stops_are_those_of_the_generation_config_and_the_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_id == 2
    assert read_generation_stops(folder, tokenizer) == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 9]}))
    assert read_generation_stops(folder, tokenizer) == (7, 2, 9)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 5}))
    assert read_generation_stops(folder, tokenizer) == (5, 2)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_parameters_are_counted_without_a_model(name: str) -> None:
    assert count_parameters(CONFIGS[name]) == sum(p.numel() for p in tiny_model(name).parameters())


def test_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"nowhere' does not exist; give a folder"):
        load(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for path in ("nowhere", "./nowhere", "models/nowhere", "a/b/c", "~/nowhere-at-all", ""):
        with pytest.raises(ConfigError, match="does not exist"):
            read_model_config(path)


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is a file; give the folder"):
        load(folder / "config.json")


def test_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    for read in (load, load_tokenizer, read_model_config):
        with pytest.raises(ConfigError, match=r"has no config.json; give the folder that `save_pretrained` wrote"):
            read(folder)


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no weights \(\*.safetensors\); copy them"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pickle files only.*save them again"):
        load(folder)


def test_folder_without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer.*tokenizer.save_pretrained"):
        load_tokenizer(folder)


@pytest.mark.parametrize("of", ["qwen3", "llama", "gemma2"])
def test_a_tokenizer_that_is_python_alone_needs_no_vocabulary(tmp_path: Path, of: str) -> None:
    save_pretrained_folder(tiny_model(of), ByT5Tokenizer(), tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    assert load_tokenizer(tmp_path)("a")["input_ids"] == [100, 1], "the byte, behind 3 tokens of its own; and the end"


@pytest.mark.parametrize(
    ("named", "of", "says"),
    [
        # transformers makes an empty one of it, without a word.
        ("Qwen2Tokenizer", "qwen3", "none of the files of that is there: vocab.json, merges.txt, tokenizer.json"),
        # It loads the class of the model's type, whichever is named.
        (
            "ByT5Tokenizer",
            "qwen2",
            "names ByT5Tokenizer, transformers loads Qwen2Tokenizer beside this model, and none",
        ),
        ("CTRLTokenizer", "qwen3", "names CTRLTokenizer, which does not load: TypeError"),
        ("Nope", "qwen3", "names Nope, which does not load: ValueError: Couldn't instantiate"),
        (None, "qwen3", "no tokenizer_class that is named"),
        ("", "qwen3", "no tokenizer_class that is named"),
        (7, "qwen3", "no tokenizer_class that is named"),
    ],
)
def test_a_tokenizer_that_is_only_named_is_refused_in_one_line(folder: Path, named: object, of: str, says: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": of}))
    with pytest.raises(ConfigError) as raised:
        load_tokenizer(folder)
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith(f"model folder {str(folder)!r} has no tokenizer (")
    assert says in text
    assert text.endswith("save one that has its vocabulary in a file there with `tokenizer.save_pretrained(folder)`")


@pytest.mark.parametrize(
    ("of", "says"),
    [
        ("llama", "it needs code that comes with the model, which Headrace never runs"),
        ("qwen3", "names Mine, which does"),
    ],
)
def test_code_that_comes_with_a_tokenizer_is_not_run(folder: Path, of: str, says: str) -> None:
    (folder / "tokenizer.json").unlink()
    named = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "mine.py").write_text("raise SystemExit('it was run')")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": of}))
    with pytest.raises(ConfigError, match=says):
        load_tokenizer(folder)


def test_damaged_files(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ConfigError, match=r"weights file .*model\.safetensors' is cut off or damaged .*copy it again"):
        load(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer of model .* cannot be used"):
        load_tokenizer(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json' is no JSON"):
        read_model_config(folder)


def test_weights_that_are_not_whole_are_refused_rather_than_made_up(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"lack 11 tensors that its config.json asks for \(model.layers.2"):
        load(folder)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    says = r"mlp\.\w+\.weight is \[(48, 32|32, 48)\] and should be \[(64, 32|32, 64)\] \(and so with 5 more\)"
    for check in (load, check_model):
        with pytest.raises(ConfigError, match=says):
            check(folder)


def test_weights_that_the_config_leaves_out_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "num_hidden_layers": 1, "layer_types": ["full_attention"]})
    )
    for check in (load, check_model):
        with pytest.raises(
            ConfigError, match=r"hold 11 tensors that its config.json does not use \(model\.layers\.1\."
        ):
            check(folder)


def test_more_layers_than_tensors_are_refused_without_building_them(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    for count, says in ((25, "is 25, and its weights hold 24 tensors in all"), (10**9, "must be 10000 or less")):
        config |= {"num_hidden_layers": count, "layer_types": None}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=says):
            check_model(folder)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_models_of_all_architectures_fit_their_weights(name: str, tmp_path: Path) -> None:
    save_pretrained_folder(tiny_model(name), tiny_tokenizer(), tmp_path)
    check_model(tmp_path)
    load(tmp_path)


def test_weights_under_names_of_an_older_version_fit(tmp_path: Path) -> None:
    """GPT-2's on the Hub have no prefix, and masks beside the weights."""
    save_pretrained_folder(tiny_model("gpt2"), tiny_tokenizer(), tmp_path)
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(tmp_path / "model.safetensors").items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_model(tmp_path)
    loaded = load(tmp_path)
    for (name, a), (_, b) in zip(loaded.named_parameters(), tiny_model("gpt2").named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    tensors["model.norm.weight"][0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    names = r"\(model\.layers\.1\.mlp\.up_proj\.weight, model\.norm\.weight\)"
    for kind in (load_causal_lm, load_value_model):
        with pytest.raises(ConfigError, match=rf"2 tensors of model .* are not finite.*{names}"):
            kind(folder, dtype=torch.bfloat16, device="cpu")


def test_what_has_no_classifier_makes_no_critic(tmp_path: Path) -> None:
    save_pretrained_folder(tiny_model("mamba"), None, tmp_path)
    with pytest.raises(ConfigError, match="transformers has no classifier of its type, as a critic and a reward model"):
        load_value_model(tmp_path, dtype=torch.float32, device="cpu")


def test_integers_are_no_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(48, 32, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for check in (load, check_weights):
        with pytest.raises(ConfigError, match=r"1 weights of .* \(model\.layers\.0\.mlp\.up_proj\.weight is I8\)"):
            check(str(folder))


def test_weights_in_several_files(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no model\.safetensors, and no model\.safetensors\.index\.json"):
        check_model(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_model(folder)
    load(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks the weights file 'model-00002-of-00002\.safetensors'"):
        check_model(folder)
    for damage in ("{", "[]", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "../x"}}'):
        (folder / "model.safetensors.index.json").write_text(damage)
        with pytest.raises(ConfigError, match=r"is damaged|lacks the weights file"):
            check_model(folder)


def test_tensors_of_no_part_of_the_model_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "vision.weight": torch.ones(2, 2)}, folder / "model.safetensors", metadata={"format": "pt"})
    check_model(folder)
    load(folder)
    (record,) = caplog.records
    assert "hold 1 tensors that no part of a causal language model takes (vision.weight)" in record.getMessage()


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Own: pass\n")
    for read in (load, read_model_config):
        with pytest.raises(ConfigError, match="code that comes with the model, which Headrace never runs"):
            read(folder)
    assert not (folder / "ran").exists()


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "meta", "mps", "cpu:1", "cuda:", "cuda:-1", "cuda:x", "CPU", ""):
        with pytest.raises(ConfigError, match=f"{name!r} is unknown; use auto, cpu, cuda or cuda:N"):
            resolve_device(name)
    with pytest.raises(ConfigError, match=r"'cuda:99' is not there.*use auto or cpu"):
        resolve_device("cuda:99")


def test_importing_the_room_starts_neither_torch_nor_transformers() -> None:
    import subprocess

    code = "import sys, headrace.models.loading; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
