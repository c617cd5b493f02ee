"""Whether ranks could cut a model up, tried before anybody loads it: with a small one of the same architecture, whose
weights are random. What only passes tell of the one, they tell of the other."""

from __future__ import annotations

import copy
import logging
import math
from typing import TYPE_CHECKING, Any

import torch

from headrace.models.loading import attention_of, auto_class, outline
from headrace.models.packed_lm import PackedLM, may_keep_segments
from headrace.models.parallel.shareable import not_shareable, require_shareable
from headrace.models.parallel.stages import require_stages, without_stages

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

_LAYERS, _WIDTH, _BETWEEN, _VOCABULARY = 4, 256, 16, 64
_MOST = 16 * 2**20
"""Parameters of a small model that is built and probed. One that has more all the same, as with many layers of kinds of
their own or many experts, would take its time: only what its outline tells is told of it."""
_HEAD = 16
"""Of each head, in a model whose heads are too wide for so small a width."""


def check_cut(config: PreTrainedConfig, *, shared: bool, stages: int, gives_values: bool) -> None:
    """`config`: of the model. `shared`: ranks share passes (tp, cp). `gives_values`: it is a classifier of tokens into
    one class, else a language model. Raises ConfigError as those do who have the model: they have the last word, also
    where there is no such small one: its architecture wants other sizes, or has more than a decoder of text."""
    kind = auto_class(gives_values=gives_values)
    try:
        small = _shrunk(config, stages)
        if gives_values:
            small.num_labels = 1
        model = outline(small, "", kind)
    except Exception as error:  # whatever an architecture makes of sizes that it cannot have
        logger.debug("of %s there is no small one: its cut is not checked before it is loaded", kind, exc_info=error)
        return
    can = may_keep_segments(model)
    lm = _made(config, small, kind) if can and model.num_parameters() <= _MOST else None
    if not can and shared:
        raise not_shareable(model)
    if not can and stages > 1:
        raise without_stages(model, stages)
    if lm is not None and shared:
        require_shareable(lm)
    if lm is not None and stages > 1:
        require_stages(lm, stages)


def _made(config: PreTrainedConfig, small: Any, kind: Any) -> PackedLM | None:
    """On the CPU, in float32. None where it cannot be built or run, and where `config` has more than a decoder of
    text."""
    try:
        if config.get_text_config() is not config:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = kind.from_config(small, trust_remote_code=False, dtype=torch.float32, **attention_of(small))
        return PackedLM(model.eval())
    except Exception as error:  # as above
        logger.debug("the small one of %s does not compute: only its outline is checked", kind, exc_info=error)
        return None


def _shrunk(config: Any, layers: int) -> Any:
    """With as many query heads to one of keys and values, layers of all kinds, and nothing else that is told apart by
    size."""
    small = copy.deepcopy(config)
    heads, whole = int(config.num_attention_heads), int(config.num_hidden_layers)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    share = math.gcd(heads, key_heads)
    small.num_attention_heads = heads // share
    if hasattr(config, "num_key_value_heads"):
        small.num_key_value_heads = key_heads // share
    if heads // share * head > _WIDTH:
        head = _HEAD
    if vars(config).get("head_dim") is not None:  # in other configs it follows from the width
        small.head_dim = head
    small.hidden_size = heads // share * head
    kinds = list(getattr(config, "layer_types", None) or ())
    of_all_kinds = max((kinds.index(kind) + 1 for kind in dict.fromkeys(kinds)), default=0)
    kept = min(whole, max(layers, of_all_kinds, _LAYERS))
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(small, name, value[:kept])
        elif "intermediate_size" in name and isinstance(value, int):
            setattr(small, name, _BETWEEN)
    small.num_hidden_layers = kept
    small.vocab_size = min(config.vocab_size, _VOCABULARY)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(config, name, None) is not None:
            setattr(small, name, 0)
    if hasattr(config, "initializer_range"):
        small.initializer_range = small.hidden_size**-0.5
    return small
