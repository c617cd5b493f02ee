"""A trainer of Megatron-Core's layers makes the step that one of transformers' makes, on the same packed rows."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from layout_rank import AS_SGD, COLUMNS, loss, rows, step
from tensor_bytes import tensor_bytes
from torch import Tensor
from training_helpers import CONFIGS, load_plainly
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from headrace.config import ConfigError
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.models.packed_lm import PackedForward
from headrace.models.packing import pack
from headrace.training.layouts.ranks import WHOLE
from headrace.training.megatron.language_model import MegatronLM
from headrace.training.megatron.names import DecoderNames
from headrace.training.megatron.weights import MegatronWeights
from headrace.training.objective import PolicyOutputs
from headrace.training.optimizer.whole_weights import WholeWeights
from headrace.training.trainer import HFTrainer
from headrace.weights.addresses import GLOO

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed (extra megatron)"),
]
_LLAMA = CONFIGS["llama"].to_dict()
MODELS = {
    "qwen3": CONFIGS["qwen3"],  # tied, norms of heads
    "llama": CONFIGS["llama"],  # untied
    "qwen2": Qwen2Config(**{key: _LLAMA[key] for key in _LLAMA if key not in ("model_type", "architectures")}),
    "llama, tied, scaled": LlamaConfig(
        **{
            **_LLAMA,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        }
    ),
}
FAST = OptimizerConfig(lr=1e-2, weight_decay=0.1)


@pytest.fixture(scope="module", autouse=True)
def _default_group() -> Iterator[None]:
    """A trainer's process keeps it to its end, and leaves no interface to those that it starts."""
    before = os.environ.get(GLOO)
    yield
    assert os.environ.get(GLOO) == before
    dist.destroy_process_group()


def model(name: str) -> PreTrainedModel:
    """Of random weights, those of norms and biases too: with ones and zeros nothing would tell them apart."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(copy.deepcopy(MODELS[name]), dtype=torch.float32)
        for parameter in made.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=0.8, std=0.3)
    return made


def trainer(name: str, *, megatron: bool, optimizer: OptimizerConfig = AS_SGD, **more: Any) -> HFTrainer:
    made: Any = model(name)
    return HFTrainer(
        cast("PreTrainedModel", MegatronLM(made)) if megatron else made,
        config=TrainerConfig(optimizer=optimizer, max_grad_norm=1e6),
        loss=loss,
        total_steps=10,
        outputs=PolicyOutputs(COLUMNS, 1.0),
        weights=MegatronWeights if megatron else WholeWeights,
        **more,
    )


def gradients(trained: HFTrainer) -> dict[str, Tensor]:
    """Their sums so far, by Hugging Face name."""
    whole = trained._whole
    assert whole is not None
    return {name: tensor.clone() for name, tensor in whole.named([whole._flat.grads])}


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """L2 norm of the difference, as a share of that of `expected`."""
    every = [torch.cat([each[key].flatten() for key in expected]) for each in (found, expected)]
    return float((every[0] - every[1]).norm() / every[1].norm())


def masters(trained: HFTrainer) -> dict[str, Tensor]:
    return {name: piece.tensor.clone() for name, piece in trained._weights.state().items()}


@pytest.mark.parametrize("kept", [False, True], ids=["whole", "kept sets"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_step_is_that_of_transformers_layers(name: str, kept: bool) -> None:
    """Rows are uneven, some begin alike, one has no token to train; each token has its own temperature; the token of
    padding, whose embedding is not trained, stands in the midst of one."""
    given = rows(kept=kept)
    (prompt, *_) = (place for place in range(4, 10) if not given[2].mask[place])
    given[2].tokens[prompt] = MODELS[name].pad_token_id
    ours, theirs = trainer(name, megatron=False), trainer(name, megatron=True)
    assert theirs._lm.forward_kind is PackedForward.SEGMENTS
    for each in (ours, theirs):
        each.keep_reference()
        each.accumulate(pack(given))
    found, expected = gradients(theirs), gradients(ours)
    assert found.keys() == expected.keys()
    assert apart(found, expected) <= 1e-6
    for key in expected:  # the few numbers of a norm are sums that all but cancel
        assert apart({key: found[key]}, {key: expected[key]}) <= 3e-6, key
    for each in (ours, theirs):
        each.discard()
    begun = {key: tensor.clone() for key, tensor in ours.tensors()}
    assert all(torch.equal(begun[key], tensor) for key, tensor in theirs.tensors())
    one, other = (step(each, given, WHOLE, 0) for each in (ours, theirs))
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-6, abs=1e-6)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-6)
    assert other["stats"] == pytest.approx(one["stats"], rel=1e-6, abs=2e-5)
    assert [other[key] for key in ("trained_tokens", "denominator", "operations", "maxima")] == [
        one[key] for key in ("trained_tokens", "denominator", "operations", "maxima")
    ]
    weights = dict(ours.tensors())
    moved = max(float((tensor - begun[key]).abs().max()) for key, tensor in weights.items())
    assert moved > 1e-3
    for key, tensor in theirs.tensors():
        assert float((tensor - weights[key]).abs().max()) <= 1e-6 * max(moved, float(weights[key].abs().max())), key
    whole = pack(given)
    assert np.allclose(theirs.logprobs(whole), ours.logprobs(whole), rtol=0, atol=2e-5)
    assert np.allclose(theirs.reference_logprobs(whole), ours.reference_logprobs(whole), rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_in_bfloat16_it_is_to_its_rounding(name: str) -> None:
    given = rows(kept=False)
    one, other = (
        step(trainer(name, megatron=megatron, dtype=torch.bfloat16), given, WHOLE, 0) for megatron in (False, True)
    )
    assert other["loss"] == pytest.approx(one["loss"], abs=3e-3)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=0.02)


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
@pytest.mark.parametrize("first", [False, True], ids=["transformers first", "megatron first"])
def test_a_checkpoint_goes_on_with_the_other_back_end(tmp_path: Path, name: str, first: bool) -> None:
    """Every bit of weights and moments is where it was, there and back, in the folder of the model as well."""
    given = rows(kept=False)
    begun = trainer(name, megatron=first, optimizer=FAST)
    begun.keep_reference()
    step(begun, given, WHOLE, 0)
    begun.save(tmp_path / "begun")
    begun.saved_reference().write(tmp_path / "reference")
    saved = masters(begun)
    other = trainer(name, megatron=not first, optimizer=FAST)
    step(other, given[:3], WHOLE, 0)  # its own are others by now
    other.keep_reference()
    other.load(tmp_path / "begun")
    other.load_reference(tmp_path / "reference")
    assert masters(other).keys() == saved.keys()
    assert all(torch.equal(tensor, saved[key]) for key, tensor in masters(other).items())
    assert all(torch.equal(tensor, saved[f"master.{key}"]) for key, tensor in other.tensors())
    whole = pack(given)
    assert np.allclose(other.reference_logprobs(whole), begun.reference_logprobs(whole), rtol=0, atol=5e-6)
    other.save(tmp_path / "other")
    models = [load_plainly(tmp_path / each / "model").state_dict() for each in ("begun", "other")]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(tensor, models[1][key]) for key, tensor in models[0].items())
    again = trainer(name, megatron=first, optimizer=FAST)
    again.load(tmp_path / "other")
    for each in (begun, again):
        step(each, given, WHOLE, 0)
    assert all(torch.equal(tensor, masters(begun)[key]) for key, tensor in masters(again).items())
    step(other, given, WHOLE, 0)
    # Adam divides by the root of moments: where gradients are next to nothing, so are the digits.
    assert all(float((tensor - masters(begun)[key]).abs().max()) < 1e-4 for key, tensor in masters(other).items())


def test_a_checkpoint_leaves_no_copies_behind(tmp_path: Path) -> None:
    """Hugging Face's rows of fused weights are copied out and in, of masters and moments both."""
    trained = trainer("qwen3", megatron=True, optimizer=FAST)
    step(trained, rows(kept=False), WHOLE, 0)
    before = tensor_bytes()
    for _ in range(2):
        trained.save(tmp_path)
        assert tensor_bytes() == before
        trained.load(tmp_path)
        assert tensor_bytes() == before


def test_layers_that_compute_something_else_are_refused() -> None:
    """Whatever a config may say that nobody thought of: logits are compared when it is built."""
    odd: Any = model("llama")
    odd.base_model.rotary_emb.attention_scaling = 1.2
    with pytest.raises(ConfigError, match=r"logits are not those of LlamaForCausalLM.*hugging_face"):
        MegatronLM(odd)


def test_a_version_that_calls_its_parameters_something_else_is_refused_by_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: Any = DecoderNames.__dict__["megatron"].fget
    monkeypatch.setattr(DecoderNames, "megatron", property(lambda self: [*own(self), "decoder.gate"]))
    with pytest.raises(ConfigError, match=r"megatron-core [0-9.]+ does not call .* \(decoder.gate\); pip install"):
        MegatronLM(model("llama"))


def test_a_process_group_of_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    with pytest.raises(ConfigError, match=r"has 4 processes here.*placement: process"):
        MegatronLM(model("llama"))
