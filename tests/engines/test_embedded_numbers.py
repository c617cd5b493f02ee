"""Tokens and log-probs of the embedded engine against Hugging Face."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from devices import DEVICE
from engines_helpers import (
    CONFIGS,
    FUSED,
    VOCAB,
    collect,
    greedy,
    prompt,
    reference_logprobs,
    request,
    rounded,
    serving,
    tiny_model,
)

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import CachePlan, cache_shape
from headrace.engines.embedded.runners import choice, fused_weights
from headrace.engines.embedded.runners.choice import choose_runner
from headrace.engines.embedded.runners.fused_runner import FusedRunner
from headrace.engines.protocol import EngineError
from headrace.models.product_choice import ProductChoice

KERNELS = "headrace.engines.embedded.runners.triton_operations"
PROMPTS = [prompt(1, 1), prompt(2, 5), prompt(3, 19), prompt(4, 11), prompt(5, 2)]


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_and_logprobs_equal_hugging_face(name: str) -> None:
    model = tiny_model(name)

    async def run() -> list[Any]:
        async with serving(model, max_concurrent_sequences=3, prefill_tokens_per_step=8) as engine:
            wanted = [request(f"r{i}", p, 20, temperature=0) for i, p in enumerate(PROMPTS)]
            return await asyncio.gather(*(collect(engine, one) for one in wanted))

    for tokens, chunk in zip(PROMPTS, asyncio.run(run()), strict=True):
        assert chunk.tokens.tolist() == greedy(model, tokens, 20)
        np.testing.assert_allclose(chunk.logprobs, reference_logprobs(model, tokens, chunk.tokens), atol=1e-4, rtol=0)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a CPU's ways")
@pytest.mark.parametrize("gain", [0.0, 2.0], ids=["as they are", "packed"])
@pytest.mark.parametrize("name", ["qwen3", "qwen2", "llama"])
def test_it_computes_the_same_with_either_layout_of_its_matrices(
    name: str, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_weights, "choice_for", lambda device, dtype: ProductChoice(gain, gain))
    model = tiny_model(name)
    cache = KeyValueCache(cache_shape(model.config), CachePlan(2, 32, 0), torch.float32, DEVICE)
    with torch.inference_mode():
        runner = choose_runner(model, cache)
        assert isinstance(runner, FusedRunner)
        assert type(runner._loaded.head) is (fused_weights.PackedProjection if gain else fused_weights.Projection)


def test_rotary_angles_are_not_rounded_with_the_weights() -> None:
    """In bfloat16, behind 1,000 tokens: frequencies in it are off by up to 0.4 %, which is radians there."""
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048}
    torch.manual_seed(0)
    config = transformers.Qwen2Config(vocab_size=VOCAB, initializer_range=0.2, **shape, **heads)
    model = transformers.Qwen2ForCausalLM(config).to(DEVICE).eval()
    tokens = prompt(1, 1000)

    async def run() -> Any:
        async with serving(model, max_concurrent_sequences=1, dtype="bfloat16") as engine:
            return await collect(engine, request("r", tokens, 60, key=3))

    chunk = asyncio.run(run())
    gaps = np.abs(chunk.logprobs - reference_logprobs(rounded(model, torch.bfloat16), tokens, chunk.tokens))
    assert gaps.mean() < 0.06, gaps.mean()


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gpt2"])
def test_sampled_logprobs_are_those_of_a_forward_pass_at_that_temperature(name: str) -> None:
    model = tiny_model(name)

    async def run() -> list[Any]:
        async with serving(model, max_concurrent_sequences=8) as engine:
            wanted = [request(f"r{i}", p, 30, key=i, temperature=0.7) for i, p in enumerate(PROMPTS)]
            return await asyncio.gather(*(collect(engine, one) for one in wanted))

    for tokens, chunk in zip(PROMPTS, asyncio.run(run()), strict=True):
        expected = reference_logprobs(model, tokens, chunk.tokens, 0.7)
        np.testing.assert_allclose(chunk.logprobs, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_fused_runner_is_chosen_where_it_applies(name: str) -> None:
    model = tiny_model(name)
    cache = KeyValueCache(cache_shape(model.config), CachePlan(2, 32, 0), torch.float32, DEVICE)
    with torch.inference_mode():
        runner = choose_runner(model, cache)
    assert (type(runner).__name__ == "FusedRunner") == (name in FUSED)


def test_a_fused_runner_that_differs_from_the_model_is_not_used() -> None:
    model = tiny_model("llama")
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()  # the config still says silu
    cache = KeyValueCache(cache_shape(model.config), CachePlan(2, 32, 0), torch.float32, DEVICE)
    with torch.inference_mode():
        assert type(choose_runner(model, cache)).__name__ == "GenericRunner"


def test_attention_that_does_not_go_through_the_interface_is_refused() -> None:
    async def run() -> None:
        async with serving(_own_attention(), max_concurrent_sequences=2):
            pass

    with pytest.raises(EngineError, match=r"its attention stays transformers' eager.*AttentionInterface"):
        asyncio.run(run())


def test_a_model_whose_rows_attend_to_keys_of_others_places_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which it does not say itself: it computes the right thing for rows of one length."""
    model = _own_attention()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: True))
    with pytest.raises(EngineError, match="computes other logits than its own forward pass"):
        _chosen(model)
    monkeypatch.setattr(choice, "_LAG", 0)
    _chosen(model)


def test_layers_of_other_masks_are_refused() -> None:
    """Of chunks so long that a comparison would not see them."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 48}
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_local_experts": 2, **heads}
    config = transformers.Llama4TextConfig(vocab_size=VOCAB, attention_chunk_size=64, pad_token_id=None, **shape)
    model = transformers.Llama4ForCausalLM(config).to(DEVICE).eval()
    assert "chunked_attention" in config.layer_types
    with pytest.raises(EngineError, match=r"has layers of chunked_attention, .* use plain or sliding-window attention"):
        _chosen(model)


def test_a_mask_of_a_models_own_is_refused() -> None:
    """Doge's hides nothing as long as its parameter is zero, as it is before any update."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "sliding_window": 16, **heads}
    model = transformers.DogeForCausalLM(transformers.DogeConfig(vocab_size=VOCAB, **shape)).to(DEVICE).eval()
    with pytest.raises(EngineError, match=r"does not run over .* \(DogeAttention makes an attention mask of its own\)"):
        _chosen(model)


def _own_attention() -> Any:
    """A model with attention of its own, which no function is given for."""
    kinds = [[["global", "local"], 1]]
    shape: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": kinds}
    config = transformers.GPTNeoConfig(
        vocab_size=VOCAB, window_size=8, max_position_embeddings=128, bos_token_id=None, eos_token_id=None, **shape
    )
    torch.manual_seed(0)
    return transformers.GPTNeoForCausalLM(config).to(DEVICE).eval()


def _chosen(model: Any) -> Any:
    cache = KeyValueCache(cache_shape(model.config), CachePlan(2, 32, 0), torch.float32, DEVICE)
    with torch.inference_mode():
        return choose_runner(model, cache)


def test_memory_that_runs_out_as_a_runner_is_tried_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of kernels of our own, for which torch's would do, nor of the architecture."""
    on_device: Any = SimpleNamespace(device=torch.device("cuda"))
    ran_out = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    def tried(error: Exception) -> Any:
        def fails(*given: Any) -> Any:
            raise error

        monkeypatch.setattr(choice.FusedRunner, "of", fails)
        return choice._with_own_kernels(on_device, on_device, torch.zeros(1), torch.zeros(1), 1.0)

    monkeypatch.setitem(sys.modules, KERNELS, SimpleNamespace(TritonOperations=None))  # type: ignore[arg-type]
    assert tried(ValueError("no such kernel")) is None
    with pytest.raises(torch.OutOfMemoryError):
        tried(ran_out)
    monkeypatch.undo()

    def fails(*given: Any) -> float:
        raise ran_out

    monkeypatch.setattr(choice, "_error", fails)
    monkeypatch.setattr(choice.FusedRunner, "of", lambda *given: None)
    model = tiny_model("llama")
    cache = KeyValueCache(cache_shape(model.config), CachePlan(2, 32, 0), torch.float32, DEVICE)
    with torch.inference_mode(), pytest.raises(torch.OutOfMemoryError):
        choose_runner(model, cache)


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_bfloat16_stays_near_float32(name: str) -> None:
    model = tiny_model(name, dtype=torch.bfloat16)
    tokens = prompt(3, 19)

    async def run() -> Any:
        async with serving(model) as engine:
            return await collect(engine, request("r", tokens, 30, key=5))

    chunk = asyncio.run(run())
    expected = reference_logprobs(model.float(), tokens, chunk.tokens)
    assert np.abs(chunk.logprobs - expected).mean() < 0.1


def test_the_cache_grows_past_its_first_capacity() -> None:
    model = tiny_model("qwen3")
    model.config.max_position_embeddings = 600
    tokens = prompt(6, 250)

    async def run() -> Any:
        async with serving(model, max_concurrent_sequences=2) as engine:
            return await collect(engine, request("r", tokens, 40, key=5))

    chunk = asyncio.run(run())
    assert len(chunk.tokens) == 40
    expected = reference_logprobs(model, tokens, chunk.tokens)
    np.testing.assert_allclose(chunk.logprobs, expected, atol=1e-4, rtol=0)
