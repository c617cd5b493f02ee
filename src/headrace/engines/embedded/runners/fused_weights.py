"""Weights of Llama-like decoders, arranged for few and large matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from headrace.models.product_choice import choice_for
from headrace.models.products import packed, product, product_onto
from headrace.weights.copies import copy_each


@dataclass(frozen=True, slots=True)
class FusedShape:
    """What a Llama-like decoder needs beside its weights."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    tied: bool


@dataclass(frozen=True, slots=True)
class Projection:
    """x W^T + b with W^T stored contiguously: for few rows that is up to 1.5 times as fast on a CPU."""

    weight: torch.Tensor
    """[in, out]"""
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def onto(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """hidden + x W^T + b, of one dtype, in the place of `hidden`: torch would copy that before the product."""
        return hidden.addmm_(x, self.weight) if self.bias is None else hidden.add_(self(x))

    def tensors(self) -> list[torch.Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]


@dataclass(frozen=True, slots=True)
class PackedProjection(Projection):
    """x W^T + b with W packed, on CPUs where that is faster; see `models/products.py`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self.weight, self.bias)

    def onto(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return product_onto(hidden, x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; a third of the operations of torch's own on a CPU."""

    weight: torch.Tensor
    """Broadcasts to x; float32 on a CPU, where x is float32 for any dtype of the model."""
    eps: torch.Tensor
    """Float32 [1]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self.eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
        return (x * scale).mul_(self.weight)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    input_norm: RmsNorm
    qkv: Projection
    qk_norm: RmsNorm | None
    """Of [heads + kv_heads, head_dim]: the weight of `q_norm` for each query head, of `k_norm` for each key head."""
    out: Projection
    post_norm: RmsNorm
    gate_up: Projection
    down: Projection

    def tensors(self) -> list[torch.Tensor]:
        norms = [norm.weight for norm in (self.input_norm, self.post_norm, self.qk_norm) if norm is not None]
        return norms + [t for p in (self.qkv, self.out, self.gate_up, self.down) for t in p.tensors()]


@dataclass(frozen=True, slots=True)
class FusedWeights:
    embedding: torch.Tensor
    layers: tuple[FusedLayer, ...]
    norm: RmsNorm
    head: Projection

    def tensors(self) -> list[torch.Tensor]:
        layers = [tensor for layer in self.layers for tensor in layer.tensors()]
        return [self.embedding, self.norm.weight, *self.head.tensors(), *layers]

    def overwrite(self, other: FusedWeights) -> None:
        """Take the other's values at this one's addresses."""
        copy_each(zip(self.tensors(), other.tensors(), strict=True))


def fused_names(shape: FusedShape, names: frozenset[str]) -> frozenset[str]:
    """Those of a model's parameter names that `fuse` would use."""
    wanted = {"model.embed_tokens.weight", "model.norm.weight"}
    if not shape.tied:
        wanted |= {"lm_head.weight", "lm_head.bias"}
    attention = tuple(f"self_attn.{part}_proj" for part in ("q", "k", "v", "o"))
    projections = (*attention, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    for i in range(shape.layers):
        wanted |= {f"model.layers.{i}.{part}.weight" for part in (*projections, *norms)}
        wanted |= {f"model.layers.{i}.{part}.bias" for part in projections}
    return frozenset(wanted & names)


def fuse(weights: Mapping[str, torch.Tensor], shape: FusedShape) -> FusedWeights:
    """From tensors by Hugging Face name, all of one dtype and device. Copies every matrix."""
    embedding = weights["model.embed_tokens.weight"].clone()
    head = "model.embed_tokens" if shape.tied else "lm_head"
    return FusedWeights(
        embedding,
        tuple(_fuse_layer(weights, f"model.layers.{i}.", shape) for i in range(shape.layers)),
        _norm(weights["model.norm.weight"], shape),
        _project(weights, head),
    )


def _fuse_layer(weights: Mapping[str, torch.Tensor], prefix: str, shape: FusedShape) -> FusedLayer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qk_norm = None
    if attention + "q_norm.weight" in weights:
        query, key = weights[attention + "q_norm.weight"], weights[attention + "k_norm.weight"]
        qk_norm = _norm(torch.cat([query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1)]), shape)
    return FusedLayer(
        _norm(weights[prefix + "input_layernorm.weight"], shape),
        _project(weights, *(attention + part for part in ("q_proj", "k_proj", "v_proj"))),
        qk_norm,
        _project(weights, attention + "o_proj"),
        _norm(weights[prefix + "post_attention_layernorm.weight"], shape),
        _project(weights, mlp + "gate_proj", mlp + "up_proj"),
        _project(weights, mlp + "down_proj"),
    )


def _norm(weight: torch.Tensor, shape: FusedShape) -> RmsNorm:
    dtype = weight.dtype if weight.is_cuda else torch.float32
    return RmsNorm(weight.to(dtype, copy=True), torch.tensor([shape.norm_eps], device=weight.device))


def _project(weights: Mapping[str, torch.Tensor], *modules: str) -> Projection:
    """The named linear layers side by side."""
    parts = [weights[name + ".weight"] for name in modules]
    bias = torch.cat([weights[name + ".bias"] for name in modules]) if modules[0] + ".bias" in weights else None
    if choice_for(parts[0].device, parts[0].dtype).packed:  # packing copies
        return PackedProjection(packed(parts[0] if len(parts) == 1 else torch.cat(parts)), bias)
    return Projection(torch.cat(parts).t().contiguous(), bias)
