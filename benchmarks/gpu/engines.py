"""Decode, prefill and swaps of the engine at real sizes, beside `generate` and its continuous batching."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.shapes import Served, free_memory, parameters, random_model, random_tokens
from headrace.config import EngineConfig
from headrace.engines.protocol import SwapMode

PROMPT = 1024
_PREFILL_TOKENS = 8192


def decode_row(shape: str, concurrent: int, new_tokens: int, bandwidth: float, runs: int) -> dict[str, Any]:
    """What prefill takes by itself is measured apart and taken off."""
    own, read = _own(shape, concurrent, new_tokens)
    prompts = random_tokens(concurrent, PROMPT)
    whole, alone = [], []
    for round_ in range(runs + 1):
        first, _ = own.generate(prompts, 1)
        every, chunks = own.generate(prompts, new_tokens)
        assert all(len(chunk.tokens) == new_tokens for chunk in chunks)
        if round_:
            whole.append(every)
            alone.append(first)
    kernels = own.kernels
    own.close()
    free_memory()
    step = (statistics.median(whole) - statistics.median(alone)) / (new_tokens - 1)
    return {
        "shape": shape,
        "concurrent": concurrent,
        "prompt": PROMPT,
        "new_tokens": new_tokens,
        "kernels": kernels,
        "decode_step_ms": step * 1e3,
        "decode_tokens_per_s": concurrent / step,
        "share_of_bandwidth": read / step / bandwidth,
        "prefill_s": statistics.median(alone),
        "seconds": statistics.median(whole),
    }


def peers_row(shape: str, concurrent: int, new_tokens: int, runs: int) -> dict[str, Any]:
    """Prefill and decode together, against `generate` and its continuous batching, sides in turn."""
    own, _ = _own(shape, concurrent, new_tokens)
    prompts, peer = random_tokens(concurrent, PROMPT), random_model(shape, torch.bfloat16)
    seconds: dict[str, list[float]] = {"headrace": [], "generate": [], "continuous batching": []}
    failed: dict[str, str] = {}
    for round_ in range(runs + 1):
        for name, of_side in seconds.items():
            if name in failed:
                continue
            try:
                taken = (
                    own.generate(prompts, new_tokens)[0]
                    if name == "headrace"
                    else _peer(name, peer, prompts, new_tokens)
                )
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            print(f"  {name}: {taken:.2f} s", flush=True)
            if round_:
                of_side.append(taken)
    row: dict[str, Any] = {"shape": shape, "concurrent": concurrent, "prompt": PROMPT, "new_tokens": new_tokens}
    row |= {"kernels": own.kernels, "attention of peers": peer.config._attn_implementation}
    own.close()
    peer.destroy_cached_continuous_batching_manager()
    del peer
    free_memory()
    for name, of_side in seconds.items():
        if of_side and name != "headrace":
            # Round by round, as far as a side that failed came.
            ratios = [theirs / ours for ours, theirs in zip(seconds["headrace"], of_side, strict=False)]
            row[f"ratio to {name}"] = statistics.median(ratios)
    return row | ({"failed": failed} if failed else {})


def _own(shape: str, concurrent: int, new_tokens: int) -> tuple[Served, float]:
    """An engine for these, and the bytes that a decode step reads: weights, and keys and values halfway."""
    model = random_model(shape, torch.bfloat16)
    config, itemsize = model.config, torch.bfloat16.itemsize
    head_dim = config.hidden_size // config.num_attention_heads
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
    read = itemsize * (parameters(model) + concurrent * (PROMPT + new_tokens / 2) * kv)
    settings = EngineConfig(
        max_concurrent_sequences=concurrent, max_context=PROMPT + new_tokens, prefill_tokens_per_step=_PREFILL_TOKENS
    )
    return Served(model, settings), read


def prefill_row(shape: str, rate: float, runs: int) -> dict[str, Any]:
    """Eight prompts of 1,024 tokens at once, one token sampled of each."""
    model = random_model(shape, torch.bfloat16)
    # Of the last layer prefill computes queries, keys and values alone, and no logits but of the last token.
    last = model.model.layers[-1]
    unused = parameters(last.self_attn.o_proj) + parameters(last.mlp)
    body = parameters(model) - model.config.vocab_size * model.config.hidden_size - unused
    own = Served(
        model,
        EngineConfig(max_concurrent_sequences=8, max_context=PROMPT + 8, prefill_tokens_per_step=_PREFILL_TOKENS),
    )
    del model
    seconds = [own.generate(random_tokens(8, PROMPT, seed), 1)[0] for seed in range(runs + 1)][1:]
    own.close()
    free_memory()
    median = statistics.median(seconds)
    return {
        "shape": shape,
        "tokens": 8 * PROMPT,
        "seconds": median,
        "tokens_per_s": 8 * PROMPT / median,
        "share_of_matrix_rate": 2 * body * 8 * PROMPT / median / rate,
    }


def swap_rows(shape: str, concurrent: int, bandwidth: float, runs: int) -> Iterator[dict[str, Any]]:
    """In the midst of decoding; `copied`: the weights' bytes read and written by a publication."""
    model = random_model(shape, torch.bfloat16)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    size = sum(tensor.nbytes for tensor in weights.values())
    own = Served(model, EngineConfig(max_concurrent_sequences=concurrent, max_context=512))
    del model
    prompts = random_tokens(concurrent, 128)
    own.generate(prompts, 128)
    seconds, _ = own.generate(prompts, 128)
    for mode in (SwapMode.KEEP, SwapMode.RECOMPUTE):
        found = [own.swap(prompts, 128, weights, mode) for _ in range(runs)]
        published, flip = (
            statistics.median(values) for values in ([f[0] for f in found], [f[2].flip_s for f in found])
        )
        yield {
            "shape": shape,
            "mode": str(mode),
            "interrupted": found[-1][2].interrupted,
            "publish_s": published,
            "publish_share_of_bandwidth": 2 * size / published / bandwidth,
            "until_swapped_s": statistics.median(f[1] for f in found),
            "flip_s": flip,
            "flip_in_decode_steps": flip / (seconds / 128),
            "prefill_s": statistics.median(f[2].prefill_s for f in found),
        }
    own.close()
    free_memory()


def _peer(name: str, model: Any, prompts: Any, new_tokens: int) -> float:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(
        max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=True, top_k=0, pad_token_id=0
    )
    torch.cuda.synchronize()
    began = time.perf_counter()
    if name == "generate":
        ids = torch.from_numpy(prompts.astype("int64")).cuda()
        made = model.generate(ids, generation_config=config, attention_mask=torch.ones_like(ids))
        assert made.shape[1] == prompts.shape[1] + new_tokens
    else:
        # With its manager, cache and graphs from the round before, as ours is, and room for the others beside it.
        outputs = model.generate_batch(
            [row.tolist() for row in prompts],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(max_memory_percent=0.5),
            persistent_manager=True,
        )
        lengths = {len(output.generated_tokens) for output in outputs.values()}
        if len(outputs) != len(prompts) or lengths != {new_tokens}:
            raise RuntimeError(f"{len(outputs)} outputs of {sorted(lengths)} tokens")
    torch.cuda.synchronize()
    return time.perf_counter() - began
