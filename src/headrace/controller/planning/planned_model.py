"""A model as a plan counts it: what its config.json describes, of which nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import TrainConfig
from headrace.controller.planning.layouts import GIVE_VALUES, config_of_kind
from headrace.models.experts import experts_per_token
from headrace.models.loading import parameter_sizes


@dataclass(frozen=True, slots=True)
class PlannedModel:
    config: Any
    """Of Hugging Face."""
    sizes: tuple[int, ...]
    """Numbers in each parameter, those that are tied once."""
    gives_values: bool = False
    """It is a classifier of tokens into one class, else a language model."""

    @classmethod
    def of(cls, config: Any, *, gives_values: bool = False) -> PlannedModel:
        """Raises ConfigError if `config` describes no such model."""
        return cls(config, tuple(parameter_sizes(config, gives_values=gives_values)), gives_values)

    @property
    def parameters(self) -> int:
        return sum(self.sizes)

    @property
    def text(self) -> Any:
        """The config of its layers."""
        return self.config.get_text_config()

    @property
    def layers(self) -> int:
        return int(self.text.num_hidden_layers)

    @property
    def matrix(self) -> int:
        """Numbers of its embedding, and of its output layer if that is as large."""
        return int(self.text.vocab_size) * int(self.text.hidden_size)

    @property
    def is_tied(self) -> bool:
        """Whether one matrix is both embedding and output layer."""
        return bool(self.text.tie_word_embeddings) and not self.gives_values

    @property
    def outside(self) -> int:
        """Numbers that are in none of its layers, but for a few."""
        return min(self.matrix * (1 if self.is_tied or self.gives_values else 2), self.parameters)

    @property
    def layer(self) -> int:
        return (self.parameters - self.outside) // max(1, self.layers)

    @property
    def expert(self) -> int:
        """Numbers of an expert of a layer; 0 of a model without."""
        text = self.text
        return int(3 * text.moe_intermediate_size * text.hidden_size) if experts_per_token(text) else 0

    def less(self, numbers: int) -> PlannedModel:
        """With so many fewer in its layers."""
        return replace(self, sizes=(self.parameters - numbers,))


def planned_models(config: TrainConfig, policy: Any) -> Mapping[str, PlannedModel]:
    """Those that a run trains or scores with, as its plan names them: `trainer` is the policy, of which `policy` is the
    Hugging Face config. Raises ConfigError."""
    trained, algorithm = PlannedModel.of(policy), config.algorithm
    found = {"trainer": trained, "proximal": trained}
    beside = {
        "critic": algorithm.needs_critic,
        "reference": algorithm.needs_reference,
        "teacher": algorithm.needs_teacher,
        "reward": config.reward.model.path is not None,
    }
    for kind in (kind for kind, is_there in beside.items() if is_there):
        own, gives_values = config_of_kind(kind, config, policy), kind in GIVE_VALUES
        same = own is policy and not gives_values
        name = "reward model" if kind == "reward" else kind
        found[name] = trained if same else PlannedModel.of(own, gives_values=gives_values)
    return found
