"""Tiny random models, and an engine in a runtime of its own."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import torch
import transformers
from devices import DEVICE

from headrace.algorithms.kept_sets import joined
from headrace.config import EngineConfig
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import GenerateRequest, SamplingParams, TokenChunk
from headrace.runtime.inline import InlineRuntime
from headrace.weights.in_process import MemoryPublisher, MemoryReceiver
from headrace.weights.version import Version

VOCAB = 97
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3_sliding": ("Qwen3", {"use_sliding_window": True, "sliding_window": 6, "layer_types": _LAYER_TYPES}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    "qwen2_moe_sliding": (  # its attention says nothing of its window, which is longer than what is tried at a start
        "Qwen2Moe",
        {
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": _LAYER_TYPES,
        },
    ),
    "phimoe_sliding": ("Phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
    "qwen2": ("Qwen2", {}),
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral_sliding": ("Mistral", {"sliding_window": 6}),
    "gemma2": ("Gemma2", {"sliding_window": 6, "query_pre_attn_scalar": 8, "attn_implementation": "eager"}),
    "gemma3": ("Gemma3", {"sliding_window": 6, "layer_types": _LAYER_TYPES, "query_pre_attn_scalar": 8}),
    "gpt2": (
        "GPT2",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "initializer_range": 0.2},
    ),
}
FUSED = ("qwen3", "qwen2", "llama", "mistral")


def tiny_model(
    name: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, device: torch.device = DEVICE
) -> Any:
    family, extra = CONFIGS[name]
    suffix = "TextConfig" if family == "Gemma3" else "Config"
    arguments = extra if family == "GPT2" else {**_COMMON, **extra}
    config = getattr(transformers, family + suffix)(**arguments)
    torch.manual_seed(seed)
    model = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else family + "ForCausalLM")(config)
    with torch.no_grad():  # norms and biases too: a weight that is 1 or 0 would hide that it is not used
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return rounded(model.to(device), dtype).eval()


def rounded(model: Any, dtype: torch.dtype) -> Any:
    """With parameters of that dtype, and buffers as they were: as `from_pretrained` loads one, and a trainer has it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


@asynccontextmanager
async def serving(model: Any, **config: Any) -> AsyncIterator[EmbeddedEngine]:
    """An engine over a copy of `model`, started; stopped at the end."""
    runtime = InlineRuntime()
    engine = EmbeddedEngine(copy.deepcopy(model), config=EngineConfig(**config), runtime=runtime)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        await runtime.close()


def prompt(seed: int, length: int) -> Any:
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.int32)


def request(
    name: str,
    tokens: Any,
    max_new_tokens: int = 8,
    key: int = 0,
    min_version: Any = None,
    stream: bool = False,
    return_kept: bool = False,
    client: tuple[str, ...] = (),
    experts_from: int | None = None,
    **kw: Any,
) -> GenerateRequest:
    sampling = SamplingParams(max_new_tokens=max_new_tokens, **kw)
    return GenerateRequest(
        name, np.asarray(tokens, dtype=np.int32), sampling, key, min_version, stream, return_kept, client, experts_from
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let others compute until `condition` holds."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come true")


async def collect(engine: EmbeddedEngine, wanted: GenerateRequest) -> TokenChunk:
    """All chunks of a request as one."""
    return joined_chunks([chunk async for chunk in engine.generate(wanted)])


def joined_chunks(chunks: list[TokenChunk]) -> TokenChunk:
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    return TokenChunk(
        np.concatenate([chunk.tokens for chunk in chunks]),
        np.concatenate([chunk.logprobs for chunk in chunks]),
        np.concatenate([chunk.versions for chunk in chunks]),
        np.concatenate([chunk.branches for chunk in chunks]),
        chunks[-1].finish_reason,
        joined([chunk.kept for chunk in chunks], [len(chunk.tokens) for chunk in chunks]),
        np.concatenate(experts) if (experts := [c.experts for c in chunks if c.experts is not None]) else None,
    )


@torch.no_grad()
def reference_logprobs(model: Any, tokens: Any, response: Any, temperature: float = 1.0) -> Any:
    """Log-probs of the response by one plain Hugging Face forward pass."""
    whole = torch.from_numpy(np.concatenate([tokens, response]).astype(np.int64))[None].to(model.device)
    logits = model(input_ids=whole, use_cache=False).logits.float()[0, len(tokens) - 1 : -1] / temperature
    chosen = torch.log_softmax(logits, dim=-1).gather(1, whole[0, len(tokens) :, None])
    return chosen[:, 0].cpu().numpy()


@torch.no_grad()
def greedy(model: Any, tokens: Any, count: int) -> list[int]:
    """Greedy continuation by `generate`."""
    ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))[None].to(model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(tokens) :].tolist()


def published(model: Any, version: Version) -> MemoryReceiver:
    """The receiving end of one publication of the model's parameters."""
    publisher = MemoryPublisher()
    publisher.publish(version, model.named_parameters())
    return publisher.receiver()
