"""Two small models, plain or with experts, and what the conformance suite needs to know of them."""

from __future__ import annotations

import copy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

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
    def __init__(self, publisher: WeightPublisher, kind: str = "qwen3") -> None:
        self._publisher = publisher
        self.kind = kind
        self.number = 0
        """Of the newest."""
        self._publish("a", spoilt=False)

    def __call__(self, name: str, spoilt: bool) -> WeightReceiver:
        self.number += 1
        return self._publish(name, spoilt=spoilt)

    def _publish(self, name: str, *, spoilt: bool) -> WeightReceiver:
        own, other = model(name, self.kind), model("ab".replace(name, ""), self.kind)
        parameters = {each: value.detach() for each, value in own.named_parameters()}
        if spoilt:
            odd = next(each for each in parameters if each.startswith("model.layers.1.mlp.") and "down_proj" in each)
            parameters[odd] = dict(other.named_parameters())[odd].detach()
        check = make_check(
            check_tokens(VOCAB, LONG),
            partial(scored, FrozenScorer(copy.deepcopy(own), temperature=1.0).logprobs),
            temperature=1.0,
            dtype="float32",
            routers_choose=self.kind != "qwen3",
        )
        snapshot = self._publisher.snapshot(Version(0, self.number), parameters.items(), check)
        self._publisher.send(snapshot)
        return self._publisher.receiver()


def subject(engine: Engine, clock: Clock, publish: Publications, context: int = CONTEXT) -> Subject:
    """`context`: the engine's."""
    return Subject(engine, clock, publish, partial(logprobs, kind=publish.kind), VOCAB, context, STOPS)
