"""Run by a test: compiles the engine's kernels for CUDA devices of two generations, without one. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headrace.engines.embedded.fused_sampling import fused_sampler, triton_sampling
from headrace.engines.embedded.runners import triton_kernels

CAPABILITIES = (80, 90)
STRIDES = {"table_stride": "i32", "kind_stride": "i64", "page_stride": "i32", "head_stride": "i32"}
COUNTS = dict.fromkeys(("width", "heads", "kv_heads", "head_dim"), "i32")
FLOATS = {"eps": "fp32", "scale": "fp32", "table": "*fp32", "sums": "*fp32", "peaks": "*fp32", "totals": "*fp32"}
INTEGERS = {"positions": "*i64", "slots": "*i64", "pages": "*i32"}
SAMPLING = {
    **dict.fromkeys(("logits", "temperatures", "top_p", "logprobs"), "*fp32"),
    **dict.fromkeys(("greedy", "truncated"), "*i1"),
    **dict.fromkeys(("top_k", "streams", "positions", "peaks", "masses", "tokens", "kept_counts"), "*i64"),
    **dict.fromkeys(("counts", "keys", "ids", "sizes", "kept"), "*i32"),
    **dict.fromkeys(("vocab", "parts", "width"), "i32"),
}

Variant = tuple[str, Any, dict[str, str], dict[str, Any], int]
"""(name, kernel, types of parameters by name, constants, warps)"""


def forward(dtype: str, head_dim: int) -> Iterator[Variant]:
    """As `TritonOperations` calls them, with 14 heads over 2 of keys, in pages of 64."""
    activations = dict.fromkeys(("x", "weight", "gate_up", "qkv", "query", "cache", "out"), f"*{dtype}")
    types = STRIDES | COUNTS | FLOATS | INTEGERS | activations
    attention = {"GROUP": 7, "QUERIES": 16, "KEYS": 64, "BLOCK": head_dim, "PARTS": 8, "PRECISION": "ieee"}
    kernels = triton_kernels
    for kernel, constants in (
        (kernels.rms_norm, {"BLOCK": 1024}),
        (kernels.silu_gated, {"BLOCK": 1024}),
        (kernels.turn_and_store, {"NORMED": True, "BLOCK": head_dim, "TOKENS": 64}),
        (kernels.turn_and_store, {"NORMED": False, "BLOCK": head_dim, "TOKENS": 64}),
        (kernels.attend_part, attention),
        (kernels.join_parts, {"BLOCK": head_dim, "PARTS": 8}),
    ):
        yield f"{kernel.__name__} {dtype} {constants}", kernel, types, constants, 4


def sampling() -> Iterator[Variant]:
    """As `sample_fused` calls them, with rows of several slices and of one: Triton makes a constant of what is 1."""
    sizes, of_one = {"SLICE": fused_sampler._SLICE, "TILE": fused_sampler._TILE, "SLICES": 16}, {"parts": 1}
    kernels, warps = triton_sampling, fused_sampler._WARPS
    for kernel in (kernels.find_peaks, kernels.weigh, kernels.gather, kernels.choose_kept, kernels.choose_of_all):
        names = {p.name for p in kernel.params}
        for constants in (sizes, sizes | of_one) if "parts" in names else (sizes,):
            own = {name: value for name, value in constants.items() if name in names}
            yield f"{kernel.__name__} {own}", kernel, SAMPLING, own, warps


def main() -> None:
    shared: dict[str, int] = {}
    variants = [v for dtype in ("fp32", "bf16") for head_dim in (64, 128) for v in forward(dtype, head_dim)]
    variants += sampling()
    for name, kernel, types, constants, warps in variants:
        signature = {p.name: "constexpr" if p.name in constants else types[p.name] for p in kernel.params}
        for capability in CAPABILITIES:
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            target = GPUTarget("cuda", capability, 32)
            compiled = triton.compile(source, target=target, options={"num_warps": warps})
            assert compiled.asm["cubin"]
            shared[f"{name} {capability}"] = compiled.metadata.shared
    sys.stdout.write(json.dumps(shared) + "\n")


if __name__ == "__main__":
    main()
