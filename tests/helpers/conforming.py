"""Two small models, plain or with experts, and what the conformance suite needs to know of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from headrace.config.values.dtypes import dtype_name
from headrace.engines.conformance import Subject
from headrace.engines.protocol import Engine
from headrace.runtime.protocol import Clock
from headrace.training.frozen import FrozenScorer
from headrace.training.taking import scored
from headrace.weights.plane import WeightPublisher, WeightReceiver
from headrace.weights.swap_check import LONG, check_tokens, make_check
from headrace.weights.version import Version

VOCAB, CONTEXT, STOP = 512, 1024, 7
STOPS = tuple(range(STOP, VOCAB, 16))
SEEDS = {"a": 1, "b": 2}
_MLP = "model.layers.1.mlp."


@cache
def model(name: str, kind: str = "qwen3") -> Any:
    """On the CPU, in float32, with embeddings that are tied: nothing a server finds easy. `kind`: or `qwen3_moe`, whose
    experts are of a width that kernels fill up."""
    torch.manual_seed(SEEDS[name])
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": kind == "qwen3",
        "initializer_range": 0.08,
        "bos_token_id": None,
        "eos_token_id": STOP,
        "pad_token_id": 1,
    }
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape)).eval()
    experts = {"moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**shape, **experts)).eval()


def folder(name: str, path: Path, kind: str = "qwen3") -> Path:
    """The model, in Hugging Face format."""
    model(name, kind).save_pretrained(path)
    return path


@torch.no_grad()
def logprobs(name: str, tokens: NDArray[np.int32], temperature: float, kind: str = "qwen3") -> NDArray[np.float32]:
    """See `Subject.logprobs`."""
    logits = model(name, kind)(torch.from_numpy(tokens).long()[None]).logits[0]
    told: NDArray[np.float32] = torch.log_softmax(logits / temperature, -1).numpy()
    return told


class Publications:
    """Of a trainer in `dtype`. `without`: a parameter that it leaves out."""

    def __init__(
        self,
        publisher: WeightPublisher,
        kind: str = "qwen3",
        *,
        dtype: torch.dtype = torch.float32,
        without: str | None = None,
    ) -> None:
        self._publisher = publisher
        self.kind = kind
        self._dtype = dtype
        self._without = without
        self.number = 0
        """Of the newest."""
        self._publish("a", lambda name: False)

    def __call__(self, name: str, spoilt: bool) -> WeightReceiver:
        own = model(name, self.kind)
        odd = next(each for each, _ in own.named_parameters() if each.startswith(_MLP) and "down_proj" in each)
        return self._next(name, lambda each: spoilt and each == odd)

    def other_than(self, name: str) -> WeightReceiver:
        """The other model, with the swap check of this one."""
        return self._next(name, lambda each: True)

    def _next(self, name: str, is_other: Callable[[str], bool]) -> WeightReceiver:
        self.number += 1
        return self._publish(name, is_other)

    def _publish(self, name: str, is_other: Callable[[str], bool]) -> WeightReceiver:
        """`is_other`: whether a parameter is as in the other model."""
        own = copy.deepcopy(model(name, self.kind))
        for parameter in own.parameters():  # buffers stay as they are: angles of positions are of float32
            parameter.data = parameter.data.to(self._dtype)
        other = dict(model("ab".replace(name, ""), self.kind).named_parameters())
        parameters = {
            each: (other[each] if is_other(each) else value).detach().to(self._dtype)
            for each, value in own.named_parameters()
            if each != self._without
        }
        check = make_check(
            check_tokens(VOCAB, LONG),
            partial(scored, FrozenScorer(own, temperature=1.0).logprobs),
            temperature=1.0,
            dtype=dtype_name(self._dtype),
            routers_choose=self.kind != "qwen3",
        )
        snapshot = self._publisher.snapshot(Version(0, self.number), parameters.items(), check)
        self._publisher.send(snapshot)
        return self._publisher.receiver()


def subject(engine: Engine, clock: Clock, publish: Publications, context: int = CONTEXT) -> Subject:
    """`context`: the engine's."""
    return Subject(engine, clock, publish, partial(logprobs, kind=publish.kind), VOCAB, context, STOPS)
