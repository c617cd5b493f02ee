"""Evaluation on held-out prompts: the plain set, which `data.eval` names, and sets with names of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from headrace.config.base import Section
from headrace.config.data import OneSource, SourceConfig
from headrace.config.reward import RewardConfig
from headrace.config.values.temperature import AnyTemperature

PLAIN = "eval"
"""Name of the set that `data.eval` names."""
VOTES = ("exact", "numeric", "choice", "boxed_math")
"""Built-in rewards that take one answer out of a response, which can be voted on."""
_PASS = re.compile(r"pass@([1-9][0-9]{0,5})")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def passes(metric: str) -> int | None:
    """The k of `pass@k`; None of another metric."""
    found = _PASS.fullmatch(metric)
    return int(found[1]) if found else None


def _metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in ("mean", "majority") and passes(name) is None:
            raise ValueError(f"{name!r} is no metric; give mean, majority, or pass@K, as pass@8")
        if names.count(name) > 1:
            raise ValueError(f"{name} is given twice; give each once")
    return names


Metrics = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_metrics)]


def _names(sets: dict[str, EvaluationSetConfig]) -> dict[str, EvaluationSetConfig]:
    for name in sets:
        if name == PLAIN:
            raise ValueError(f"a set is called {PLAIN}, which is the name of the one in data.eval; give it another")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"a set is called {name!r}; begin with a letter, and use letters, digits, _ and - (40 at most)"
            )
    return sets


class EvaluationSetConfig(Section):
    """What is not given is as in `evaluation`, and the reward as in `reward`."""

    data: OneSource
    """Held-out prompts: a file, folder or Hub name, or a mapping with its options, as `data.eval`."""
    prompt_column: str | None = None
    """As `data.prompt_column`, which it is unless given."""
    every: int | None = Field(default=None, ge=1)
    samples: int | None = Field(default=None, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=1)
    temperature: AnyTemperature | None = None
    max_prompts: int | None = Field(default=None, ge=1)
    timeout_s: float | None = Field(default=None, gt=0)
    metrics: Metrics | None = None
    pass_at: float | None = None
    reward: RewardConfig | None = None
    """How its answers are scored, as in the section `reward`; as training's unless given. Without `reward.model`, which
    only training's has."""


class EvaluationConfig(Section):
    function: str | None = Field(default=None, min_length=1)
    """A function of yours that plays the prompts of all held-out sets in the place of the workflow; as
    `rollout.function`."""
    every: int | None = Field(default=None, ge=1)
    """Batches between evaluations, beside those before and after training; none unless given."""
    samples: int = Field(default=1, ge=1)
    """Answers drawn for each prompt."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest response; that of `rollout.sampling` unless given."""
    temperature: AnyTemperature = 0.0
    """0 is greedy; else at least 0.01."""
    max_prompts: int | None = Field(default=None, ge=1)
    """Only the first so many held-out prompts."""
    timeout_s: float = Field(default=600.0, gt=0)
    """An evaluation of a set that takes longer is given up, and the engine freed for new weights."""
    engines: int = Field(default=1, ge=1)
    """Of several engines, how many hold the version that is evaluated; never all of them. If they die, it begins again
    with the newest version, once."""
    metrics: Metrics = ("mean",)
    """`mean` reward; `pass@K`, the chance that one of K answers passes; `majority`, whether the answer that most of a
    prompt's samples give passes. The first is the set's score."""
    pass_at: float = 1.0
    """A sample passes if its reward is this or more."""
    sets: Annotated[dict[str, EvaluationSetConfig], AfterValidator(_names)] = Field(default={})
    """Held-out sets by name, beside the one in `data.eval`, which is called `eval`."""


@dataclass(frozen=True, slots=True)
class BestBy:
    """What the best checkpoint is found by."""

    name: str
    """Of the set."""
    metric: str
    every: int
    highest: bool

    @property
    def key(self) -> str:
        """As `checkpoint.keep_best` names it, in full: `gsm/pass@1`."""
        return f"{self.name}/{self.metric}"


def best_by(keep_best: str, sets: Sequence[HeldOut], *, highest: bool) -> BestBy:
    """Raises ValueError where there is no such metric, or no evaluation during training."""
    name, _, metric = keep_best.partition("/")
    chosen = next((each for each in sets if each.name == name), None)
    if chosen is None:
        there = ", ".join(each.name for each in sets) or "none; set data.eval, which is called eval"
        raise ValueError(f"checkpoint.keep_best is {keep_best!r}, and the held-out sets are {there}")
    if metric and metric not in chosen.metrics:
        raise ValueError(
            f"checkpoint.keep_best is {keep_best!r}, and the metrics of {name} are {', '.join(chosen.metrics)}; name "
            f"one of them, or add it to {chosen.key}.metrics"
        )
    if chosen.every is None:
        raise ValueError(
            f"checkpoint.keep_best is {keep_best!r}, but {name} is evaluated only before and after training; set "
            f"{chosen.key}.every"
        )
    return BestBy(name, metric or chosen.metrics[0], chosen.every, highest)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A held-out set with all of its settings."""

    name: str
    source: SourceConfig
    prompt_column: str
    every: int | None
    samples: int
    max_new_tokens: int
    temperature: float
    max_prompts: int | None
    timeout_s: float
    metrics: tuple[str, ...]
    pass_at: float
    reward: RewardConfig
    own_reward: bool
    """Whether that is not training's."""

    @property
    def key(self) -> str:
        """Of its section in the config."""
        return "evaluation" if self.name == PLAIN else f"evaluation.sets.{self.name}"

    def check(self, *, single_turn: bool) -> None:
        """Raises ValueError where its settings do not fit together. `single_turn`: one response is all of an
        episode."""
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.key}: samples is {self.samples} and temperature 0, which draws one answer so many times; set "
                "temperature, or samples: 1"
            )
        for metric in self.metrics:
            k = passes(metric)
            if k is not None and k > self.samples:
                raise ValueError(
                    f"{self.key}: {metric} needs {k} samples a prompt, and samples is {self.samples}; raise it to {k} "
                    "or more"
                )
        if "majority" in self.metrics:
            self._check_votes(single_turn)
        if self.own_reward and self.reward.model.path is not None:
            raise ValueError(
                f"{self.key}.reward.model: only training's reward may have a reward model; leave reward out, or name "
                "a function"
            )

    def _check_votes(self, single_turn: bool) -> None:
        if self.samples == 1:
            raise ValueError(f"{self.key}: majority needs several samples to vote, and samples is 1; raise it")
        terms = self.reward.all_terms
        if len(terms) != 1 or terms[0].function not in VOTES or self.reward.group is not None:
            raise ValueError(
                f"{self.key}: majority votes on the answer that a reward takes out of a response, and "
                f"{self.reward.description or 'a reward model'} takes none; use one of {', '.join(VOTES)} as the set's "
                "reward.function, or leave majority out"
            )
        if not single_turn:
            raise ValueError(
                f"{self.key}: majority votes on single responses, and rollout.workflow has several turns; leave "
                "majority out"
            )
