"""Parameters of Hugging Face's decoders as parts of Megatron-Core's: names and layout, without arithmetic.

Megatron-Core has queries, keys and values in one matrix, group by group: the queries that share a head of keys and
values, that head's keys, its values. It has the gate above the up projection in another. All else is one to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from headrace.training.megatron.support import DecoderShape


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a Megatron parameter is one of Hugging Face's."""

    name: str
    """Hugging Face's."""
    rows: tuple[int, ...] | None = None
    """How the parameter's first dimension is cut up; None: the part is all of it."""
    begin: int = 0
    end: int = 0
    """Along the last but one of `rows`."""

    def of(self, tensor: Tensor) -> Tensor:
        """A view, in which rows may have several dimensions."""
        if self.rows is None:
            return tensor
        return tensor.unflatten(0, self.rows).narrow(len(self.rows) - 2, self.begin, self.end - self.begin)


class DecoderNames:
    """Of all parameters of a decoder."""

    def __init__(self, shape: DecoderShape) -> None:
        self._parts: dict[str, tuple[_Part, ...]] = {
            "embedding.word_embeddings.weight": (_Part("model.embed_tokens.weight"),)
        }
        for layer in range(shape.layers):
            self._parts |= _of_layer(shape, f"decoder.layers.{layer}", f"model.layers.{layer}")
        self._parts["decoder.final_layernorm.weight"] = (_Part("model.norm.weight"),)
        if not shape.tied:
            self._parts["output_layer.weight"] = (_Part("lm_head.weight"),)

    @property
    def megatron(self) -> list[str]:
        """Names of Megatron-Core's parameters."""
        return [*self._parts]

    def parts_of(self, name: str) -> list[str]:
        """Hugging Face's names of what is in a Megatron parameter."""
        return [part.name for part in self._parts[name]]

    def views(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parts of a Megatron parameter by Hugging Face name, as views: what is written there is in `tensor`. Each
        holds in its order what the Hugging Face tensor does; its rows may be cut up into several dimensions."""
        for part in self._parts[name]:
            yield part.name, part.of(tensor)

    def split(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parts of a Megatron parameter as Hugging Face has them: views where the layout allows, else copies."""
        for part, view in self.views(name, tensor):
            yield part, as_stored(view, tensor)

    def join(self, name: str, tensors: Mapping[str, Tensor], into: Tensor) -> None:
        """Fill a Megatron parameter from Hugging Face's."""
        for part, view in self.views(name, into):
            view.copy_(tensors[part].view(view.shape))


def as_stored(view: Tensor, whole: Tensor) -> Tensor:
    """A part of `whole` with its rows in one dimension."""
    return view.reshape(-1, *whole.shape[1:])


def _of_layer(shape: DecoderShape, megatron: str, hugging_face: str) -> dict[str, tuple[_Part, ...]]:
    attention, ours = f"{megatron}.self_attention", f"{hugging_face}.self_attn"
    share = shape.heads // shape.groups
    rows = (shape.groups, share + 2, shape.head_dim)
    parts: dict[str, tuple[_Part, ...]] = {}
    for kind in ("weight", *(["bias"] if shape.qkv_bias else [])):
        parts[f"{attention}.linear_qkv.{kind}"] = (
            _Part(f"{ours}.q_proj.{kind}", rows, 0, share),
            _Part(f"{ours}.k_proj.{kind}", rows, share, share + 1),
            _Part(f"{ours}.v_proj.{kind}", rows, share + 1, share + 2),
        )
    parts[f"{attention}.linear_proj.weight"] = (_Part(f"{ours}.o_proj.weight"),)
    if shape.qk_norm:
        for which in ("q", "k"):
            parts[f"{attention}.{which}_layernorm.weight"] = (_Part(f"{ours}.{which}_norm.weight"),)
    halves = (2, -1)
    parts[f"{megatron}.mlp.linear_fc1.weight"] = (
        _Part(f"{hugging_face}.mlp.gate_proj.weight", halves, 0, 1),
        _Part(f"{hugging_face}.mlp.up_proj.weight", halves, 1, 2),
    )
    parts[f"{megatron}.mlp.linear_fc2.weight"] = (_Part(f"{hugging_face}.mlp.down_proj.weight"),)
    parts[f"{megatron}.input_layernorm.weight"] = (_Part(f"{hugging_face}.input_layernorm.weight"),)
    parts[f"{megatron}.pre_mlp_layernorm.weight"] = (_Part(f"{hugging_face}.post_attention_layernorm.weight"),)
    return parts
