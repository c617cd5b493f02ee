"""Recipes: advantages, the policy loss, and what is added to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from headrace.config.base import Section
from headrace.config.recipe_defaults import with_defaults
from headrace.config.values.name_or_function import is_own, one_of

RecipeName = Literal[
    "grpo",
    "ppo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "m2po",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opd",
]
ADVANTAGES = (
    "group_normalized",
    "batch_normalized",
    "mean_only",
    "leave_one_out",
    "opo",
    "gae",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "distillation",
)
LOSSES = ("clipped_surrogate", "cispo", "gspo", "geometric_mean", "sapo", "m2po", "reinforce")
BEHAVIOR_MODES = ("truncate", "mask", "clip")
PROXIMALS = ("recompute", "loglinear", "behavior", "current")
KL_ESTIMATORS = ("k1", "k2", "k3", "abs", "k3+")
AGGREGATIONS = ("token_mean", "sample_mean", "sample_sum", "constant_length")
BY_GROUP = (
    "group_normalized",
    "batch_normalized",
    "mean_only",
    "leave_one_out",
    "reinforce_plus_plus_baseline",
    "opo",
)
"""Advantages that a group of one sample leaves at 0."""


class BehaviorConfig(Section):
    """Weights proximal / behaviour that correct for staleness (decoupled PPO, AReaL eq. 5)."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Whose weight: the token's, the product over its sample, or the geometric mean over its sample."""
    mode: Annotated[str, one_of(*BEHAVIOR_MODES)] = "truncate"
    """Outside [low, high]: `truncate` limits the weight, `mask` sets it to 0, `clip` limits it and keeps the gradient
    only inside (which differs from `truncate` only in a loss of yours: here the proximal log-probs are constants). Or a
    function of yours, `path.py:function`, that gives the weights; the keys beside do not count then."""
    low: float = Field(default=0.0, ge=0)
    high: float = Field(default=5.0, gt=0)
    veto: float | None = Field(default=None, gt=0)
    """A sample with a token whose weight is below this has no part in the loss."""

    @model_validator(mode="after")
    def _ordered(self) -> BehaviorConfig:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class KLConfig(Section):
    """A penalty on the KL divergence from the reference model."""

    coefficient: float = Field(default=0.0, ge=0)
    """0 is no penalty, and needs no reference model."""
    place: Literal["loss", "reward"] = "loss"
    """`loss`: a term of the loss. `reward`: taken from the reward, token by token where the advantage has tokens."""
    of: Literal["behavior", "proximal"] = "behavior"
    """`place: reward`: whose KL is paid for. `behavior`: of the policy that sampled the token, whose log-prob is at
    hand. `proximal`: of the policy that the batch begins with, which a pass more over the batch's rows finds out."""
    estimator: Annotated[str, one_of(*KL_ESTIMATORS)] = "k3"
    """`k1`, `k2`, `k3`, `abs`, `k3+` (k3's value with k2's gradient; `place: loss` only), or a function of yours:
    `path.py:function`. With `place: reward` it is `k1` unless given: there an estimate is a constant, and of these only
    k1's pushes along the gradient of the KL."""
    target: float | None = Field(default=None, gt=0)
    """A KL of whole samples, in nats, towards which the coefficient moves (Ziegler et al. 2019)."""
    horizon: int = Field(default=10_000, ge=1)
    """With `target`: samples over which the coefficient moves."""
    controller: Annotated[str, one_of()] | None = None
    """A function of yours that gives the coefficient after each batch, instead of `target`: `path.py:function`."""

    @model_validator(mode="before")
    @classmethod
    def _of_its_place(cls, given: Any) -> Any:
        return {"estimator": "k1", **given} if isinstance(given, Mapping) and given.get("place") == "reward" else given

    @model_validator(mode="after")
    def _fits_its_place(self) -> KLConfig:
        if self.place == "reward" and self.estimator == "k3+":
            raise ValueError("estimator is k3+, which differs from k3 in its gradient only; in the reward use k1")
        if self.target is not None and self.coefficient == 0:
            raise ValueError("target is set but coefficient is 0, from which nothing moves; give the first coefficient")
        if self.target is not None and self.controller is not None:
            raise ValueError("target and controller are both set; give one of them")
        return self

    @property
    def moves(self) -> bool:
        """Whether the coefficient changes from batch to batch."""
        return self.target is not None or self.controller is not None

    @property
    def moves_in_loss(self) -> bool:
        """Whether that is the coefficient of a term of the loss, which trainers have to be told."""
        return self.place == "loss" and self.moves


class ShapingConfig(Section):
    """Rewards as the advantages see them; the record keeps the raw ones."""

    clip: tuple[float, float] | None = None
    """[lowest, highest]."""
    overlong_buffer: int | None = Field(default=None, ge=0)
    """Tokens before `rollout.sampling.max_new_tokens` from which a sample is penalised for its length (DAPO)."""
    overlong_factor: float = Field(default=1.0, ge=0)
    """The penalty at the longest length."""
    length_weight: float = Field(default=0.0, ge=0)
    """Weight of a reward for the shorter answers of a group (Kimi k1.5)."""
    correct_above: float = 0.5
    """`length_weight`: an answer with a reward above this counts as correct."""
    function: Annotated[str, one_of()] | None = None
    """A function of yours that is given the rewards after all of these: `path.py:function`."""

    @model_validator(mode="after")
    def _clip_is_a_range(self) -> ShapingConfig:
        if self.clip is not None and self.clip[0] > self.clip[1]:
            raise ValueError(f"clip is {list(self.clip)}, whose first is above its second; give [lowest, highest]")
        return self


RESERVED = (
    *("scored", "reference", "teacher", "values", "last_value", "returns", "proximal", "advantages"),
    *("kept", "kept_sets", "temperatures", "experts", "model_score", "fresh"),
)
"""Columns that mean something to a role, whoever writes them."""


class StageConfig(Section):
    """A stage of the user's own: it computes columns of the table from others, before anything trains on them."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    function: str
    """`path.py:function` or `module:function`; see docs/recipes.md."""
    reads: tuple[str, ...]
    """Columns that it is called with, by name."""
    writes: tuple[str, ...] = Field(min_length=1)
    """Columns that it returns."""
    unit: Literal["row", "group", "batch"] = "row"
    """Whether it sees one sample at a time, all of a group, or all of a batch (which must be sealed then)."""

    @model_validator(mode="after")
    def _writes_what_is_its_own(self) -> StageConfig:
        if taken := [name for name in self.writes if name in RESERVED]:
            raise ValueError(f"stage {self.name} writes {taken[0]}, a column of Headrace's own; choose another name")
        return self


class AlgorithmConfig(Section):
    recipe: RecipeName = "grpo"
    """What the other keys of this section are unless given, and with them which stages run."""
    advantage: Annotated[str, one_of(*ADVANTAGES)] = "group_normalized"
    """`group_normalized`, `batch_normalized`, `mean_only`, `leave_one_out`, `opo`, `gae` (needs a critic),
    `reinforce_plus_plus`, `reinforce_plus_plus_baseline`, `distillation` (needs a teacher), or a function of yours:
    `path.py:function`."""
    truncated: Literal["terminal", "bootstrap", "mask"] = "terminal"
    """A sample that a limit on tokens, context or turns cut off: `terminal` takes it as ended there, with its reward
    for all that it was worth; `bootstrap` adds the critic's value of the state at which it was cut (needs a critic);
    `mask` leaves it out of the loss, and in the comparison of its group."""
    whiten: bool = False
    """`gae`: bring the advantages of a batch to mean 0 and variance 1."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """`gae`, `reinforce_plus_plus`: discount of later rewards."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """`gae`: weight of longer returns."""
    loss: Annotated[str, one_of(*LOSSES)] = "clipped_surrogate"
    """`clipped_surrogate`, `cispo`, `gspo`, `geometric_mean`, `sapo`, `m2po`, `reinforce`, or a function of yours:
    `path.py:function`."""
    objective: Literal["decoupled", "naive"] = "decoupled"
    """`decoupled`: trust region around the proximal policy, corrected by behaviour weights. `naive`: the
    behaviour policy is taken for the proximal one."""
    proximal: Annotated[str, one_of(*PROXIMALS)] = "recompute"
    """Whose log-probs the ratio is against, with several optimiser steps per batch. `recompute`: those that the
    batch begins with, by a forward pass before the first; `loglinear`: the same, when a sample is first seen (over
    several epochs: of one step each): as they are in the first step, later interpolated between behaviour and current
    policy (AReaL); `behavior`: the
    behaviour policy's, so that no weights correct for staleness; `current`: the policy's own, so that nothing is
    clipped (not over several epochs); or a function of yours: `path.py:function`."""
    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 - clip_low where the advantage is negative. Unless given, it and `clip_high` are the
    recipe's; of another loss than the recipe's those of its paper: 0.2 and 0.2 (`clipped_surrogate`), 1 and 4
    (`cispo`), 0.0003 and 0.0004 (`gspo`), 0.4 and 0.4 of the log-ratio (`geometric_mean`)."""
    clip_high: float = Field(default=0.28, ge=0)
    """The ratio is clipped above 1 + clip_high where the advantage is positive."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Where the advantage is negative, the ratio counts no more than this."""
    tau_positive: float = Field(default=1.0, gt=0)
    """`sapo`: steepness of the gate for positive advantages."""
    tau_negative: float = Field(default=1.05, gt=0)
    second_moment: float = Field(default=0.04, ge=0)
    """`m2po`: bound on the mean square of log current / behaviour over a batch."""
    behavior: BehaviorConfig = BehaviorConfig()
    kl: KLConfig = KLConfig()
    router_replay: bool = False
    """Of a model with experts: the policy that is trained routes each token to the experts that the embedded engine
    routed it to (R3), so that the two differ by rounding alone. See docs/experts.md."""
    entropy: float = Field(default=0.0, ge=0)
    """Coefficient of an entropy bonus."""
    shaping: ShapingConfig = ShapingConfig()
    aggregation: Annotated[str, one_of(*AGGREGATIONS)] = "token_mean"
    """`token_mean`, `sample_mean`, `sample_sum`, `constant_length` (a sample's sum divided by
    `rollout.sampling.max_new_tokens`, whatever its turns), or a function of yours: `path.py:function`."""
    stages: tuple[StageConfig, ...] = ()
    """Stages of yours, which add columns."""
    advantage_reads: tuple[str, ...] = ()
    """Columns that your own `advantage` finds in its argument's `columns`. Whoever writes them runs: `values` brings
    the critic, `reference` and `teacher` those models."""
    loss_reads: tuple[str, ...] = ()
    """Columns that your own `loss` is called with, as keywords; the same."""
    epochs_per_batch: int = Field(default=1, ge=1)
    """Passes over a batch, of the actor and of the critic. With more than one the batch is sealed first; what its
    losses compare with (proximal log-probs, behaviour weights, advantages, returns, values) stays as it is when it
    begins."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimiser steps of the actor in each epoch over a batch. With more than one the batch is sealed first, and which
    samples each step has is drawn from (`seed`, batch, epoch)."""
    stop_kl: float | None = Field(default=None, gt=0)
    """The actor's epochs over a batch end after one in which the mean KL (k3, per token, in nats) of the policy that
    the batch began with to the one that was trained was above this. The critic goes on. `trainer.lr_schedule` is
    over the steps of all epochs: a run in which some are left out ends at a higher rate than `min_ratio` says."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_recipe(cls, given: Any) -> Any:
        return with_defaults(given) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _known(self) -> AlgorithmConfig:
        for key, value in (("advantage", self.advantage), ("loss", self.loss)):
            if getattr(self, f"{key}_reads") and not is_own(value):
                raise ValueError(
                    f"{key}_reads is given but {key} is {value}, which has its columns; name a function of yours"
                )
        if objects := sorted(
            {"group", "metadata", "terms", "kept_sets", "experts"} & {*self.advantage_reads, *self.loss_reads}
        ):
            raise ValueError(
                f"{objects[0]} is no column of numbers, which an advantage or a loss could read; have a stage of yours "
                "read it and write what is needed of it"
            )
        if self.clip_low > 1 and self.loss in ("clipped_surrogate", "cispo", "gspo"):
            raise ValueError(f"clip_low is {self.clip_low}; a ratio is never negative, so use 0 to 1")
        if self.distils:
            if self.kl.place == "reward" and self.kl.coefficient:
                raise ValueError(
                    "advantage is distillation, which looks at no reward, but kl.place is reward; use loss"
                )
            if self.loss == "m2po":
                raise ValueError("advantage is distillation, which m2po's mask cannot see; use loss: reinforce")
        if self.loss == "m2po" and self.objective == "decoupled":
            raise ValueError("loss is m2po, whose ratio is against the behaviour policy: use objective: naive")
        if self.truncated == "bootstrap" and not self.needs_critic:
            raise ValueError(
                f"truncated is bootstrap, which asks a critic what a sample had to come, but advantage is "
                f"{self.advantage}, which has none; use advantage: gae, or truncated: mask"
            )
        if self.kl_of_proximal and self.proximal not in ("recompute", "behavior", "current"):
            raise ValueError(
                f"kl.of is proximal, which needs the log-probs of a pass under the weights that a batch begins with, "
                f"but proximal is {self.proximal}, which does without; use proximal: recompute, or kl.of: behavior"
            )
        if self.proximal == "current" and self.epochs_per_batch > 1:
            raise ValueError(
                f"proximal is current, which moves with every step, but epochs_per_batch is {self.epochs_per_batch}, "
                "over which the proximal policy stays the one that the batch began with; use recompute"
            )
        works_out = self.proximal == "loglinear" or is_own(self.proximal)
        several = self.epochs_per_batch > 1 and self.updates_per_batch > 1
        if several and (works_out or self.stop_kl is not None) and not self.needs_proximal:
            what = "epochs_per_batch above 1" if self.stop_kl is None else "stop_kl"
            raise ValueError(
                f"{what} needs the log-probs that a batch begins with, but proximal is {self.proximal}, which does "
                f"without, and updates_per_batch is {self.updates_per_batch}, so that the policy has moved when most "
                "samples are first seen; use proximal: recompute, or updates_per_batch: 1"
            )
        return self

    @property
    def steps_per_batch(self) -> int:
        """Optimiser steps of the actor on a batch, unless `stop_kl` ends them."""
        return self.epochs_per_batch * self.updates_per_batch

    @property
    def ratio_is_one(self) -> bool:
        """Whether the policy in training is always the one that its ratio is against, so that nothing is clipped."""
        one_step = self.steps_per_batch == 1 and self.proximal != "behavior"
        return self.objective == "decoupled" and (one_step or self.proximal == "current")

    @property
    def distils(self) -> bool:
        """Whether a teacher takes the place of rewards."""
        return self.advantage == "distillation"

    @property
    def needs_reference(self) -> bool:
        return self.kl.coefficient > 0 or self._reads("reference")

    @property
    def needs_critic(self) -> bool:
        return self.advantage == "gae" or (is_own(self.advantage) and self._reads("values"))

    @property
    def needs_teacher(self) -> bool:
        return self.distils or self._reads("teacher")

    def _reads(self, column: str) -> bool:
        """Whether a piece of the user's own does."""
        return any(column in reads for reads in (self.advantage_reads, self.loss_reads, *self._stage_reads))

    @property
    def _stage_reads(self) -> tuple[tuple[str, ...], ...]:
        return tuple(stage.reads for stage in self.stages)

    @property
    def needs_whole_batch(self) -> bool:
        """Whether advantages wait for the sealed batch."""
        by_batch = ("batch_normalized", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
        return self.advantage in by_batch or self.whiten or (self.kl.moves and self.kl.place == "reward")

    @property
    def looks_at_tokens(self) -> bool:
        """Whether advantages are more than a number an episode that follows from rewards and lengths."""
        if self.distils:
            return False  # there are none
        by_token = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
        own = (self.advantage, self.kl.estimator, self.kl.controller or "", self.shaping.function or "")
        in_reward = self.kl.place == "reward" and self.kl.coefficient > 0
        return self.advantage in by_token or in_reward or any(map(is_own, own))

    @property
    def calls_functions(self) -> bool:
        """Whether columns are computed by stages of the user's, or by advantages that look at tokens."""
        return bool(self.stages) or self.looks_at_tokens

    @property
    def kl_of_proximal(self) -> bool:
        """Whether the reward pays for the KL of the policy that a batch begins with."""
        return self.kl.coefficient > 0 and self.kl.place == "reward" and self.kl.of == "proximal"

    @property
    def needs_proximal(self) -> bool:
        """Whether the loss reads log-probs under the weights that a batch begins with."""
        return (self.steps_per_batch > 1 and self.proximal == "recompute") or self.loss == "m2po"

    @property
    def seals_batch(self) -> bool:
        """Whether the actor waits for the sealed batch: for its several steps, or for M2PO's mask over all of it."""
        return self.steps_per_batch > 1 or self.loss == "m2po"
