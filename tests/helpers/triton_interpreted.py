"""Run by a test, with Triton's interpreter: the engine's kernels for CUDA devices, on a CPU. Prints JSON."""

from __future__ import annotations

import json
import sys

import torch
from models_helpers import tiny_model

from headrace.engines.embedded.cache_plan import CachePlan, CacheShape, cache_shape
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.runners import choice
from headrace.engines.embedded.runners.fused_runner import FusedRunner
from headrace.engines.embedded.runners.fused_weights import FusedShape, RmsNorm
from headrace.engines.embedded.runners.operations import Operations, TokenPlaces, TorchOperations
from headrace.engines.embedded.runners.rope import RotaryTable
from headrace.engines.embedded.runners.triton_operations import TritonOperations

SLOTS, CONTEXT, ROWS, PAGES = 6, 300, 5, 16
CPU = torch.device("cpu")


def results(make: type[Operations], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of each operation, over one cache of arbitrary numbers; and the cache."""
    shape = FusedShape(layers=1, heads=heads, kv_heads=kv_heads, head_dim=head_dim, norm_eps=1e-6, tied=True)
    plan = CachePlan(slots=SLOTS - 1, max_context=CONTEXT, bytes_wanted=0, pages=PAGES)
    cache = PagedCache(CacheShape(1, kv_heads, head_dim), plan, dtype, CPU)
    cache.dtype = dtype  # as on a device
    for slot, length in ((4, 100), (2, CONTEXT), (0, 1), (3, 65), (1, 8)):
        cache.pages.extend(slot, length)
    cache.pages.release(4)
    cache.pages.extend(4, 131)
    cache.begin()
    own = torch.Generator().manual_seed(0)

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=own).to(dtype)

    cache.layers = [numbers(*cache.layers[0].shape)]
    rotary = RotaryTable(1e-4 ** (torch.arange(0, head_dim, 2) / head_dim), 1.0, cache)
    operations = make(shape, rotary, cache, dtype)  # type: ignore[call-arg]
    eps = torch.tensor([1e-6])
    hidden, weight = numbers(ROWS, 40), numbers(40)
    qk_norm = RmsNorm(numbers(heads + kv_heads, head_dim), eps)
    qkv = numbers(ROWS, (heads + 2 * kv_heads) * head_dim)
    positions, slots = torch.tensor([0, 7, CONTEXT - 1, 64, 130]), torch.tensor([0, 1, 2, 3, SLOTS - 1])
    turn = operations.turn(TokenPlaces(positions, slots))
    normed, plain = (turn(0, qkv.clone(), norm) for norm in (qk_norm, None))
    found = [operations.norm(RmsNorm(weight, eps), hidden), normed, plain, cache.layers[0].clone()]
    found.append(operations.gated(numbers(ROWS, 2 * 1500)))
    found.append(operations.attention(positions, CONTEXT)(0, numbers(ROWS, heads, head_dim)))
    return found


def main() -> None:
    errors: dict[str, float] = {}
    for dtype in (torch.float32, torch.float16):  # the interpreter has no products in bfloat16
        for shape in ((4, 2, 16), (6, 1, 24), (14, 2, 64)):
            sides = [results(make, *shape, dtype) for make in (TorchOperations, TritonOperations)]
            names = ("norm", "normed queries", "queries", "cache", "gated", "attention")
            for name, expected, mine in zip(names, *sides, strict=True):
                far = (mine.float() - expected.float()).abs().max() / expected.float().abs().max()
                errors[f"{name} {shape} {dtype}"] = float(far) if mine.dtype == expected.dtype else float("inf")
    runners = {}
    for name, context in (("llama", 32), ("qwen3", 140)):  # one page, and three
        model = tiny_model(name)
        with torch.inference_mode():
            plan = CachePlan(slots=4, max_context=context, bytes_wanted=0, pages=8)
            cache = PagedCache(cache_shape(model.config), plan, torch.float32, CPU)
            runner = FusedRunner.of(model, cache, TritonOperations)
            assert runner is not None
            tokens = choice._probe_tokens(model, *choice._size(cache))
            cache.hold(*tokens.shape)
            expected = model(input_ids=tokens, use_cache=False).logits.float()
            runners[name] = choice._error(runner, tokens, expected, 1e-4)
    sys.stdout.write(json.dumps({"operations": errors, "runners": runners}) + "\n")


if __name__ == "__main__":
    main()
