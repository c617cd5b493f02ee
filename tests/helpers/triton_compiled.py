"""Run by a test: compiles the engine's kernels for CUDA devices of two generations, as they would be launched there,
without one. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headrace.engines.embedded.fused_sampling import fused_sampler, triton_sampling
from headrace.engines.embedded.runners import triton_kernels, triton_operations

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

ALIGNED = ("width", "head_dim", "vocab", "kind_stride", "page_stride", "head_stride")
"""Integers that 16 divides, with the usual sizes; and it divides all addresses."""
KEYS, GROUP, QUERIES = 64, 7, 16


@dataclass(frozen=True, slots=True)
class Variant:
    kernel: Any
    types: dict[str, str]
    """Of parameters, by name."""
    constants: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        return f"{self.kernel.__name__} {self.types.get('x', '')} {self.constants}"


def forward(dtype: str, itemsize: int) -> Iterator[Variant]:
    """As `TritonOperations` calls them, with 14 heads over 2 of keys, in pages of 64."""
    activations = dict.fromkeys(("x", "weight", "gate_up", "qkv", "query", "cache", "out"), f"*{dtype}")
    types = STRIDES | COUNTS | FLOATS | INTEGERS | activations
    for block in (1024, 8192):
        yield Variant(triton_kernels.rms_norm, types, {"BLOCK": block}, {})
    yield Variant(triton_kernels.silu_gated, types, {"BLOCK": triton_operations._COLUMNS}, {})
    for head_dim, parts in ((64, 1), (128, 16), (256, 8)):
        of_parts = {"BLOCK": head_dim, "PARTS": parts}
        attention = {"GROUP": GROUP, "QUERIES": QUERIES, "KEYS": KEYS, "PRECISION": "ieee", **of_parts}
        stages = triton_operations.stages_of(QUERIES, KEYS, head_dim, itemsize)
        yield Variant(triton_kernels.attend_part, types, attention, {"num_stages": stages})
        yield Variant(triton_kernels.join_parts, types, of_parts, {})
        for normed in (True, False):
            turning = {"NORMED": normed, "BLOCK": head_dim, "TOKENS": KEYS}
            yield Variant(triton_kernels.turn_and_store, types, turning, {})


def sampling() -> Iterator[Variant]:
    """As `sample_fused` calls them, with rows of several slices and of one: Triton makes a constant of what is 1."""
    sizes, of_one = {"SLICE": fused_sampler._SLICE, "TILE": fused_sampler._TILE, "SLICES": 16}, {"parts": 1}
    kernels, warps = triton_sampling, fused_sampler._WARPS
    for kernel in (kernels.find_peaks, kernels.weigh, kernels.gather, kernels.choose_kept, kernels.choose_of_all):
        names = {p.name for p in kernel.params}
        for constants in (sizes, sizes | of_one) if "parts" in names else (sizes,):
            own = {name: value for name, value in constants.items() if name in names}
            yield Variant(kernel, SAMPLING, own, {"num_warps": warps})


def compiled(variant: Variant, capability: int) -> Any:
    """As a launch would, which tells the compiler what 16 divides: loads are then wider and go through shared memory,
    and loops load ahead."""
    kernel, constants = variant.kernel, variant.constants
    signature = {p.name: "constexpr" if p.name in constants else variant.types[p.name] for p in kernel.params}
    aligned = [
        i
        for i, p in enumerate(kernel.params)
        if p.name not in constants and (signature[p.name].startswith("*") or p.name in ALIGNED)
    ]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=variant.options)


def main() -> None:
    shared: dict[str, int] = {}
    variants = {each.name: each for kind in (("fp32", 4), ("bf16", 2)) for each in forward(*kind)}
    variants |= {each.name: each for each in sampling()}
    for name, variant in variants.items():
        for capability in CAPABILITIES:
            made = compiled(variant, capability)
            assert made.asm["cubin"]
            shared[f"{name} {capability}"] = made.metadata.shared
    sys.stdout.write(json.dumps(shared) + "\n")


if __name__ == "__main__":
    main()
