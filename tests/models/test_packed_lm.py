from __future__ import annotations

import numpy as np
import pytest
import torch
from models_helpers import CONFIGS, VOCAB, tiny_model
from transformers import AutoModelForCausalLM, GptOssConfig, GraniteConfig, PreTrainedModel

from headrace.models.attention import UnsupportedAttention
from headrace.models.logprobs import token_logprobs
from headrace.models.packed_lm import PackedForward, PackedLM
from headrace.models.packing import MicroBatch, PackRow, pack

LENGTHS = [13, 3, 9, 30, 13, 1, 7]
"""Longer than the sliding window of the Gemma models, equal lengths, and a sample of one token."""


def rows(lengths: list[int], seed: int = 0) -> list[PackRow]:
    rng = np.random.default_rng(seed)
    return [PackRow(rng.integers(0, VOCAB, n), rng.random(n) < 0.7) for n in lengths]


def one_by_one(model: PreTrainedModel, row: PackRow, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs by the model's own forward pass on one sample alone; the definition."""
    tokens = torch.as_tensor(row.tokens)
    logits = model(input_ids=tokens[None], use_cache=False).logits[0].float() / temperature
    chosen = torch.log_softmax(logits[:-1], dim=-1).gather(1, tokens[1:, None])[:, 0]
    return torch.cat([chosen.new_zeros(1), chosen]) * torch.as_tensor(row.mask)


def grads(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def groups(seed: int = 0) -> list[PackRow]:
    """Two groups with a common prompt each, one sample of which repeats another from end to end; 75 tokens."""
    rng = np.random.default_rng(seed)
    packed = []
    for prompt, responses in ((9, (3, 8, 1)), (5, (4, 20, 0, 5))):
        common = rng.integers(0, VOCAB, prompt)
        for response in responses:
            tokens = np.concatenate([common, rng.integers(0, VOCAB, response)])
            packed.append(PackRow(tokens, np.arange(len(tokens)) >= prompt - 2))
    packed[2] = packed[1]
    return packed


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("samples", [rows(LENGTHS), groups()], ids=["apart", "sharing prompts"])
def test_packed_equals_one_by_one(name: str, temperature: float, samples: list[PackRow]) -> None:
    weights = torch.randn(sum(map(len, samples)), generator=torch.Generator().manual_seed(1))

    alone = tiny_model(name)
    expected = torch.cat([one_by_one(alone, row, temperature) for row in samples])
    (expected * weights).sum().backward()

    model = tiny_model(name)
    lm = PackedLM(model)
    actual = token_logprobs(lm, pack(samples), temperature)
    (actual * weights).sum().backward()

    assert lm.forward_kind is (PackedForward.SEPARATE if name == "mamba" else PackedForward.SEGMENTS)
    assert lm.has_plain_head
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=3e-6)
    expected_grads, actual_grads = grads(alone), grads(model)
    assert actual_grads.keys() == expected_grads.keys()
    for key, grad in expected_grads.items():
        torch.testing.assert_close(actual_grads[key], grad, rtol=1e-4, atol=2e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("kind", PackedForward)
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt2"])
def test_all_ways_to_keep_samples_apart_agree(name: str, kind: PackedForward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedLM, "_candidates", lambda self: [kind])
    model, samples = tiny_model(name), rows(LENGTHS)
    lm = PackedLM(model)
    assert lm.forward_kind is kind
    expected = torch.cat([one_by_one(tiny_model(name), row) for row in samples])
    torch.testing.assert_close(token_logprobs(lm, pack(samples)), expected, rtol=1e-5, atol=3e-6)


def test_a_way_that_is_not_exact_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.models.attention._fused", lambda q, k, v, scaling, window: v.repeat(1, 2, 1, 1))
    assert PackedLM(tiny_model("qwen3")).forward_kind is PackedForward.MASKED


def test_attention_with_sinks_is_left_to_the_model() -> None:
    config = GptOssConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=5,
        pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    samples = rows(LENGTHS)
    expected = torch.cat([one_by_one(model, row) for row in samples])
    lm = PackedLM(model)
    assert lm.forward_kind is not PackedForward.SEGMENTS
    torch.testing.assert_close(token_logprobs(lm, pack(samples)), expected, rtol=1e-5, atol=3e-6)


def test_an_output_layer_that_is_not_plain_is_left_to_the_model() -> None:
    config = GraniteConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, logits_scaling=4.0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    samples = rows(LENGTHS)
    expected = torch.cat([one_by_one(model, row) for row in samples])
    lm = PackedLM(model)
    assert not lm.has_plain_head
    torch.testing.assert_close(token_logprobs(lm, pack(samples)), expected, rtol=1e-5, atol=3e-6)


def test_a_prepared_model_called_without_segments_says_what_to_do() -> None:
    lm = PackedLM(tiny_model("qwen3"))
    with pytest.raises(UnsupportedAttention, match="set_attn_implementation"):
        lm.model(input_ids=torch.ones(2, 3, dtype=torch.int64))


def test_the_output_layer_in_pieces_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    micro = pack(rows(LENGTHS))
    results = []
    for max_logits in (VOCAB, VOCAB * 10, 2**26):
        model = tiny_model("gemma2")
        values = token_logprobs(PackedLM(model), micro, 0.8, max_logits=max_logits)
        (values * torch.arange(micro.num_tokens)).sum().backward()
        results.append((values.detach(), grads(model)))
    for values, gradients in results[:-1]:
        torch.testing.assert_close(values, results[-1][0], rtol=1e-6, atol=1e-6)
        for key, grad in results[-1][1].items():
            torch.testing.assert_close(gradients[key], grad, rtol=1e-4, atol=1e-4)


def test_nothing_to_train_costs_no_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = PackedLM(tiny_model("qwen3"))
    monkeypatch.setattr(lm, "hidden_states", None)
    micro = pack([PackRow(np.arange(4), np.zeros(4, bool))])
    values = token_logprobs(lm, micro)
    assert values.tolist() == [0, 0, 0, 0]
    assert not values.requires_grad


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    lm = PackedLM(tiny_model("gemma3"))
    sample = rows([11])[0]

    def beside(others: list[PackRow]) -> torch.Tensor:
        micro: MicroBatch = pack([others[0], sample, *others[1:]])
        return token_logprobs(lm, micro)[micro.sample_index == 1]

    first, second = beside(rows([9, 25, 2], seed=5)), beside(rows([3, 12], seed=6))
    torch.testing.assert_close(first, second, rtol=0, atol=3e-6)


def test_greedy_has_no_logprobs() -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        token_logprobs(PackedLM(tiny_model("qwen3")), pack(rows([4])), 0.0)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt2"])
def test_bfloat16_is_close_to_float32(name: str) -> None:
    micro = pack(rows(LENGTHS))
    full = token_logprobs(PackedLM(tiny_model(name)), micro)
    half = token_logprobs(PackedLM(tiny_model(name).to(torch.bfloat16)), micro)
    assert half.dtype == torch.float32
    assert (half - full).abs().mean() < 0.1
