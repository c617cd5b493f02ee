"""Megatron-Core's GPT model of a Hugging Face model's config and weights, called as the Hugging Face model is.

What is ours within it, since the originals want a CUDA device, or a mask: attention within samples, and the angles of
the rotary embedding, which packed rows have of positions that begin anew.
"""

from __future__ import annotations

import copy
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import HashStore

from headrace.config import ConfigError
from headrace.models.attention import packed_attention
from headrace.models.length_batches import SegmentPlan
from headrace.training.megatron.names import DecoderNames
from headrace.training.megatron.support import DecoderShape, shape_of
from headrace.weights.addresses import GLOO, LOOPBACK, speaking_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBED = 11
"""Tokens for which both models' logits are compared."""
_NAMED = 4
"""Parameters that an error names."""
_TOLERANCE = 1e-4
"""Largest deviation that is rounding in float32, as a share of the largest logit."""


class MegatronLM(nn.Module):
    """A decoder of Megatron-Core, whole, in this process: what `PackedLM` and `HFTrainer` ask of a model.

    Megatron-Core asks for torch's default process group wherever it computes. There is one of this process alone from
    then on; of Megatron-Core's own global state (`parallel_state`, its generators, its buffers) nothing is made.
    """

    supports_gradient_checkpointing = False
    _supports_attention_backend = True

    def __init__(self, model: PreTrainedModel) -> None:
        """Copies the weights of `model`, which are float32, to where they are. Raises ConfigError if its kind is not
        mapped, if what Megatron-Core computes is not what it does, or if torch's default group is of several processes.
        """
        super().__init__()
        shape = shape_of(model.config)
        _be_alone()
        self.config = copy.deepcopy(model.config)
        self.made_from: type[PreTrainedModel] = type(model)
        self.generation_config = getattr(model, "generation_config", None)
        self.names = DecoderNames(shape)
        rotary: Any = model.base_model.rotary_emb
        self.register_buffer("_frequencies", rotary.inv_freq.detach().float().clone(), persistent=False)
        embedding: Any = model.get_input_embeddings()
        self._padding: int | None = embedding.padding_idx
        """A token whose row of the embedding gets no gradient from where it is read, as in torch's."""
        self.gpt: Any = _build(self.config, shape)
        self._take(model)
        self.to(model.device)
        self.head = _OutputLayer(self.gpt.output_layer, int(self.config.hidden_size))
        self.eval()
        self._check(model)

    @property
    def device(self) -> torch.device:
        return self._angles_of.device

    @property
    def _angles_of(self) -> Tensor:
        """Radians a position, [D / 2] float32."""
        found: Any = self._frequencies
        return found

    @property
    def base_model(self) -> Any:
        """What gives hidden states."""
        return self._hidden

    def get_output_embeddings(self) -> nn.Module:
        """What turns hidden states into logits."""
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        found: nn.Module = self.gpt.embedding.word_embeddings
        return found

    def set_attn_implementation(self, name: str) -> None:
        """Its attention is one and the same: `packed_attention`."""
        self.config._attn_implementation = name

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **given: Any) -> tuple[Tensor]:
        """Logits, [1, N, vocabulary]; arguments as `_hidden`."""
        return (self.head(self._hidden(input_ids, position_ids, **given)[0]),)

    def _hidden(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        *,
        use_cache: bool = False,
        segments: SegmentPlan | None = None,
    ) -> tuple[Tensor]:
        """[1, N, hidden], of `input_ids` [1, N] that make up `segments`, one sample unless given."""
        assert not use_cache, "a trainer's model has none"
        count = input_ids.shape[1]
        if segments is None:
            segments = SegmentPlan.of([count], input_ids.device)
        places = torch.arange(count, device=input_ids.device) if position_ids is None else position_ids[0]
        angles = torch.outer(places.float(), self._angles_of)
        embedded = self.gpt.embedding(input_ids, None)
        if self._padding is not None:
            embedded = torch.where((input_ids == self._padding).T[..., None], embedded.detach(), embedded)
        states = self.gpt.decoder(
            embedded,
            segments,  # it goes as the attention mask does, to the attention of each layer, and nobody else looks at it
            rotary_pos_emb=torch.cat((angles, angles), dim=1)[:, None, None, :],
        )
        return (states.transpose(0, 1),)

    @torch.no_grad()
    def _take(self, model: PreTrainedModel) -> None:
        own = dict(self.gpt.named_parameters())
        theirs = dict(model.named_parameters())
        if apart := own.keys() ^ set(self.names.megatron):
            raise ConfigError(
                f"trainer.backend is megatron, and megatron-core {version('megatron-core')} does not call its "
                f"parameters what Headrace knows ({', '.join(sorted(apart)[:_NAMED])}); pip install "
                "'headrace[megatron]' for a version that does, or use trainer.backend: hugging_face"
            )
        for name, parameter in own.items():
            self.names.join(name, theirs, parameter)

    @torch.no_grad()
    def _check(self, model: PreTrainedModel) -> None:
        tokens = torch.arange(1, 1 + _PROBED, device=self.device)[None] % int(self.config.vocab_size)
        expected, found = model.eval()(input_ids=tokens, use_cache=False).logits, self(tokens)[0]
        apart = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
        if not apart <= _TOLERANCE:
            raise ConfigError(
                f"trainer.backend is megatron, and its logits are not those of {type(model).__name__}: up to "
                f"{apart:.1e} of the largest apart; use trainer.backend: hugging_face"
            )


class _OutputLayer(nn.Module):
    """Megatron-Core's, as a layer of torch is called."""

    def __init__(self, layer: Any, width: int) -> None:
        super().__init__()
        self.in_features = width
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.layer(hidden)[0]
        return logits


class _SegmentAttention(nn.Module):
    """Of a layer: each token sees the tokens of its sample that come before it, and itself."""

    def __init__(self, **given: Any) -> None:
        """`given`: what Megatron-Core tells every kind of attention."""
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, segments: SegmentPlan, **given: Any) -> Tensor:
        """[N, 1, heads, D], keys and values [N, 1, groups, D], to [N, 1, heads x D]."""
        query, key, value = (states.permute(1, 2, 0, 3) for states in (query, key, value))
        found, _ = packed_attention(self, query, key, value, None, segments=segments)
        return found.flatten(2).transpose(0, 1)


def _be_alone() -> None:
    """Torch's default process group has this process alone, and listens on loopback. Raises ConfigError."""
    if not dist.is_initialized():
        with speaking_from(LOOPBACK, GLOO):
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    elif (size := dist.get_world_size()) > 1:
        raise ConfigError(
            f"trainer.backend is megatron, and torch's default process group has {size} processes here, which "
            "Megatron-Core would take for its own; give it a process of its own: trainer.placement: process"
        )


def _build(config: Any, shape: DecoderShape) -> Any:
    """A `GPTModel` on the CPU, in float32, its weights not set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are not installed, and that nothing here asks for
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer.torch_norm import WrappedTorchNorm
        from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
        from megatron.core.transformer.transformer_config import TransformerConfig

        settings = TransformerConfig(
            num_layers=shape.layers,
            hidden_size=int(config.hidden_size),
            ffn_hidden_size=int(config.intermediate_size),
            num_attention_heads=shape.heads,
            num_query_groups=shape.groups,
            kv_channels=shape.head_dim,
            normalization="RMSNorm",
            layernorm_epsilon=float(config.rms_norm_eps),
            qk_layernorm=shape.qk_norm,
            gated_linear_unit=True,
            activation_func=F.silu,
            add_bias_linear=False,
            add_qkv_bias=shape.qkv_bias,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            # Kernels that are compiled as they are first used, or for CUDA alone.
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            gradient_accumulation_fusion=False,
            apply_rope_fusion=False,
            use_cpu_initialization=True,
            perform_initialization=False,
        )
        layer = get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm")
        layer.submodules.self_attention.submodules.core_attention = _SegmentAttention
        alone = dist.group.WORLD
        groups = ProcessGroupCollection(tp=alone, pp=alone, cp=alone, embd=alone)
        gpt = GPTModel(
            settings,
            TransformerBlockSubmodules(layer_specs=[layer] * shape.layers, layer_norm=WrappedTorchNorm),
            vocab_size=int(config.vocab_size),
            max_sequence_length=int(config.max_position_embeddings),
            position_embedding_type="none",  # angles are given with each pass
            share_embeddings_and_output_weights=shape.tied,
            pg_collection=groups,
        )
    if shape.tied:
        gpt.output_layer.weight = gpt.embedding.word_embeddings.weight
    return gpt
