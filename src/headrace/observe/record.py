"""What a run records of each batch: the one source of the live view, `inspect` and `summary.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from headrace.observe import spent


@dataclass(frozen=True, slots=True)
class Totals:
    """Running totals since this process of the run began; seconds are of this process's clock."""

    elapsed_s: float = 0.0
    generated_tokens: int = 0
    generated_samples: int = 0
    failed_samples: dict[str, int] = field(default_factory=dict)
    """By kind of failure."""
    generate_s: float = 0.0
    """Seconds in which the engines computed, added up over them."""
    train_s: float = 0.0
    """Seconds in which the trainer computed."""
    swap_stall_s: float = 0.0
    """Added up over the engines, too."""
    trainer_s: dict[str, float] = field(default_factory=dict)
    """What the trainer's time went to, by the names of `headrace.observe.spent`: adds up to `elapsed_s`. Empty in older
    records."""
    engines_s: dict[str, float] = field(default_factory=dict)
    """The same of the engines; of several their mean."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """Seconds in which each that has a device computed: as `engine 0`, `trainer`, `reference`, `trainer/1`. Empty in
    older records."""
    device_s: dict[str, float] = field(default_factory=dict)
    """The same by device, as `cpu`, `cuda:1` or `slot 0`: of all that were on it, added up. Empty in older records."""
    lent_s: float = 0.0
    """Seconds in which the trainer's devices were lent to engines."""
    mfu_s: float = 0.0
    """Seconds in which the trainer's devices would have done what it did, at the rate of their matrix products."""
    wait_s: dict[str, float] = field(default_factory=dict)
    """Seconds waited, by `side: what`, as `actor: rows of the batch`."""
    failure_words: dict[str, str] = field(default_factory=dict)
    """Why the last sample of each kind of failure failed; the last of all is at the end."""
    drop_words: dict[str, str] = field(default_factory=dict)
    """What went wrong with the last group that was dropped, by reason; only where something did."""
    reward_calls: dict[str, int] = field(default_factory=dict)
    """Calls of reward functions by their seconds, as text; see `headrace.observe.durations`."""

    @property
    def engine_stall_s(self) -> float:
        """Seconds in which new weights kept an engine from decoding; of several their mean."""
        return self.engines_s.get(spent.SWAPS, 0.0) if self.engines_s else self.swap_stall_s

    @property
    def engine_busy_s(self) -> float:
        """The same of those in which it computed or took weights."""
        return self.engines_s.get(spent.COMPUTES, 0.0) + self.engine_stall_s if self.engines_s else self.generate_s

    def to_json(self) -> dict[str, Any]:
        """Not copied: it is written down for each group that ends."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One pass of the actor over a batch. Means are over trained tokens, each as it was before the step that it had a
    part in."""

    steps: int
    """Optimiser steps."""
    approx_kl: float
    """k3 estimate of KL(behaviour || current)."""
    step_kl: float | None
    """k3 estimate of KL(policy that the batch began with || current): how far the steps on this batch have moved the
    policy. None: of several steps without recomputed log-probs, which do not know where it began."""
    clip_fraction: float


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One trained batch. Stored as JSON under the number of the version that it made."""

    batch: int
    branch: int
    groups: int
    samples: int
    reward_mean: float
    """Mean reward of the batch's samples, as scored."""
    response_tokens_mean: float
    trained_tokens: int
    """Tokens that entered the loss, however many epochs there were."""
    forwarded_tokens: int
    """Tokens that the trainer's steps computed, prompts included, in all epochs; those that samples of a micro-batch
    begin with once."""
    padding_tokens: int
    """Of these, those that belong to no sample."""
    masked_tokens: int
    """Policy tokens left out of the loss because they were staler than the bound."""
    lost_branch_tokens: int
    """Tokens sampled by versions that a restore took back."""
    late_groups: int
    """Groups trained after their deadline."""
    staleness: dict[int, int]
    """Trained tokens by staleness."""
    loss: float
    grad_norm: float
    lr: float
    skipped: bool
    """True if the optimiser step was left out (gradient not finite)."""
    drift_mean_abs: float
    """Mean over trained tokens of |log-prob under the weights that the batch began with - behaviour log-prob|: how far
    the policy has moved since it sampled them, and the mismatch. With several steps and no recomputed log-probs, over
    those of the first step."""
    drift_max_abs: float
    clip_fraction: float
    behavior_weight_mean: float
    approx_kl: float
    """k3 estimate of KL(behaviour || current), mean over the trained tokens of all epochs."""
    step_s: float
    """From the end of the batch before to the end of this one."""
    queue_groups: int
    """Ready groups that wait for a batch."""
    running_groups: int
    totals: Totals
    mfu: float | None = None
    """Model FLOPs of the trainer's steps, as a share of what its devices could have made in the time in which it
    computed; None where their rate is not known."""
    mismatch_tokens: int = 0
    """Tokens sampled by the weights that the batch began with: trained ones, and those of the gap sample."""
    mismatch_mean_abs: float | None = None
    """Mean |trainer log-prob - engine log-prob| over these, by the same weights; None of none."""
    mismatch_max_abs: float | None = None
    behavior_outside_share: float | None = None
    """Trained tokens whose weight was outside of its bounds."""
    effective_token_share: float | None = None
    """Kish's effective number of tokens under the weights, as a share of the trained ones."""
    kl_coefficient: float | None = None
    """Of the penalty on the KL to the reference, where it moves."""
    reference_kl: float | None = None
    """Mean over trained tokens, by the estimator of the config; None without a reference."""
    entropy: float | None = None
    """Of the trained policy over the whole vocabulary, mean over trained tokens, in nats; None where it is not recorded
    (`trainer.record_entropy`)."""
    kept_mass: float | None = None
    """The trained policy's probability of what top-k and top-p kept, mean over trained tokens; None without them."""
    critic_loss: float | None = None
    """None without a critic."""
    truncated_samples: int = 0
    """Samples that a limit on tokens, context or turns cut off."""
    rows_read_bytes: int = 0
    """Of the arrays of rows that ranks of the policy read by ref, each for itself or for those beside it."""
    rows_told_bytes: int = 0
    """Of rows that ranks of the policy were told by the one beside them that read them."""
    reward_terms: dict[str, float] = field(default_factory=dict)
    """Of a reward of several terms: the mean of each over the samples that have it, before it is weighted, by name. The
    reward model's score is `model`."""
    reward_sources: dict[str, float] = field(default_factory=dict)
    """Of several sources of prompts: the mean reward of the samples of each, by its name."""
    reward_min: float | None = None
    """The lowest reward of a sample of the batch, as scored."""
    reward_max: float | None = None
    episode_reward_mean: float | None = None
    """As `reward_mean`, of the batch's episodes: one of several samples counts once, by the reward of its last."""
    equal_groups: int | None = None
    """Groups whose episodes all have one reward; of groups of one, all or none, as the batch's rewards are."""
    reward_call_p50_s: float | None = None
    """Half of the calls of reward functions since the batch before took no longer; None if there were none."""
    reward_call_p99_s: float | None = None
    failed_samples: dict[str, int] = field(default_factory=dict)
    """Samples that failed since the batch before, by kind; `totals.failure_words` says why."""
    dropped_groups: dict[str, int] = field(default_factory=dict)
    """Groups that were dropped while this batch was composed, by reason; see `totals.drop_words`."""
    own: dict[str, float] = field(default_factory=dict)
    """What the user's own loss and weights report, per trained token."""
    epochs: tuple[EpochRecord, ...] = ()
    """One for each pass over the batch; fewer than the config has where `algorithm.stop_kl` ended them."""
    warm_up: bool = False
    """True in the first `critic.warmup_batches`: the critic learned alone."""
    only_recorded: bool = False
    """True in a run of `rollouts_only`: nothing was trained."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> BatchRecord:
        """Inverse of `to_json`, also after JSON turned integer keys into strings."""
        known = {f.name for f in fields(BatchRecord)}
        values = {key: value for key, value in record.items() if key in known}
        values["staleness"] = {int(key): count for key, count in record["staleness"].items()}
        values["totals"] = Totals(**record["totals"])
        values["epochs"] = tuple(EpochRecord(**epoch) for epoch in record.get("epochs", ()))
        return BatchRecord(**values)


def no_step(batch: BatchRecord) -> str | None:
    """Why the policy was not trained on the batch, in words; None if it was, or if its gradient was not finite."""
    if batch.trained_tokens:
        return None
    if batch.only_recorded:
        return "recorded only"
    if batch.warm_up:
        return "the critic learns alone"
    return "every sample was cut off" if batch.truncated_samples == batch.samples else "no token is trained"
