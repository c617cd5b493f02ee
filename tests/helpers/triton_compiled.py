"""Run by a test: compiles the engine's kernels for CUDA devices of two generations, without one. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headrace.engines.embedded.runners import triton_kernels

CAPABILITIES = (80, 90)
STRIDES = {"table_stride": "i32", "kind_stride": "i64", "page_stride": "i32", "head_stride": "i32"}
COUNTS = dict.fromkeys(("width", "heads", "kv_heads", "head_dim"), "i32")
FLOATS = {"eps": "fp32", "scale": "fp32", "table": "*fp32", "sums": "*fp32", "peaks": "*fp32", "totals": "*fp32"}
INTEGERS = {"positions": "*i64", "slots": "*i64", "pages": "*i32"}

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


def main() -> None:
    shared: dict[str, int] = {}
    variants = [v for dtype in ("fp32", "bf16") for head_dim in (64, 128) for v in forward(dtype, head_dim)]
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
