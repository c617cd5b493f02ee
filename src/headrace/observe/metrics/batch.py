"""The rows of a batch's record: `BatchRecord` and, of each epoch in it, `EpochRecord`."""

from __future__ import annotations

from headrace.observe import alarms
from headrace.observe.metrics.metric import Metric

SIZES = (
    Metric("batch", "number", "Of the batch, from 0. It is trained on version `batch`, and makes version `batch` + 1."),
    Metric("branch", "number", "Of the process that trained it: each resumed one is a new branch of versions."),
    Metric("groups", "groups", "Prompts that the batch is made of."),
    Metric("samples", "samples", "Of these groups, without those that failed."),
    Metric(
        "response_tokens_mean",
        "tokens",
        "Mean tokens a sample that the policy chose.",
        "it rises while the reward does not, or falls to a few tokens",
        "`algorithm.aggregation: token_mean` and `algorithm.shaping` decide what length is worth; look at what "
        "`truncated_samples` says",
    ),
    Metric(
        "truncated_samples",
        "samples",
        "Samples that a limit on tokens, context or turns cut off.",
        "more than a tenth of `samples`: what is cut off is judged for what it did not come to say",
        "raise `rollout.sampling.max_new_tokens`, or choose what such a sample is worth by `algorithm.truncated`",
    ),
    Metric("trained_tokens", "tokens", "Tokens that entered the loss, each once, however many epochs there were."),
    Metric(
        "forwarded_tokens",
        "tokens",
        "Tokens that the trainer's steps computed, prompts included, in all epochs. A prompt that samples of a "
        "micro-batch share counts once.",
        "many times `trained_tokens`: prompts are long beside the answers",
        "raise `rollout.samples_per_prompt` (a group shares the pass over its prompt), or "
        "`trainer.max_tokens_per_microbatch`",
    ),
    Metric(
        "padding_tokens",
        "tokens",
        "Positions that the trainer's steps computed for nothing.",
        "above 0: packed rows have none",
        "report it: a model without packed attention is in use",
    ),
    Metric(
        "rows_read_bytes",
        "bytes",
        "Of the arrays of rows that ranks of the policy read by ref: those of a part of the data once on each machine.",
    ),
    Metric(
        "rows_told_bytes",
        "bytes",
        "Of rows that one such rank read and told the others on its machine.",
    ),
    Metric("lr", "", "Learning rate of the batch's last optimiser step."),
    Metric("warm_up", "true or false", "Whether only the critic learned, in the first `critic.warmup_batches`."),
    Metric("only_recorded", "true or false", "Whether nothing was trained, but recorded (`rollouts_only`)."),
)

REWARDS = (
    Metric(
        "reward_mean",
        "reward",
        "Mean over the batch's samples, as scored, before shaping. An episode that left several samples counts as "
        "often.",
        "it stands from the beginning, or falls for tens of batches",
        "look at rewards by hand first; then `equal_groups`, `entropy` and `grad_norm`; a lower or higher "
        "`trainer.optimizer.lr` last",
    ),
    Metric(
        "episode_reward_mean",
        "reward",
        "The same over the batch's episodes: one of several samples (histories) counts once, by the reward of its "
        "last, as in advantages and evaluations.",
        "see `reward_mean`",
        "see there",
    ),
    Metric("reward_min", "reward", "The lowest of a sample of the batch."),
    Metric(
        "reward_max",
        "reward",
        "The highest of a sample of the batch.",
        "it is no higher than `reward_min`: nothing can be learned",
        "take easier prompts, or a reward that tells good answers from better ones",
    ),
    Metric(
        "reward_terms",
        "reward, by name",
        "Of a reward of several terms the mean of each, before it is weighted. A reward model's score is `model`.",
        "one rises while the others fall: the policy learns the cheap one",
        "change the weights in `reward.terms`",
    ),
    Metric(
        "reward_sources",
        "reward, by name",
        "Of several sources of prompts the mean reward of each one's samples.",
        "one stands still while the others rise",
        "look at its samples: its prompts or its reward may not fit; or give it another weight in `data.train`",
    ),
    Metric(
        "equal_groups",
        "groups",
        "Groups whose episodes all have one reward, as scored. Compared with each other their advantages are 0: they "
        "were generated for nothing, unless `algorithm.shaping` or a KL in the reward tells their samples apart. (Of "
        "groups of one: all or none, as the batch's rewards are.) Those that `zero_spread` dropped are in "
        "`dropped_groups`.",
        "nearly all of them, dropped ones included, for several batches: every prompt is too easy or too hard",
        "take prompts that are solved now and then, raise `rollout.samples_per_prompt`, or use a reward with more "
        "steps",
        alarms.rewards_are_equal,
    ),
    Metric(
        "reward_call_p50_s",
        "seconds",
        "Half of the calls of reward functions since the batch before took no longer.",
    ),
    Metric(
        "reward_call_p99_s",
        "seconds",
        "99 % of these calls took no longer.",
        "near the time limit of a call, or so long that `waits: rewards and environments` is a large share",
        "raise `reward.workers`, or make the function quicker",
    ),
)

STALENESS = (
    Metric(
        "staleness",
        "tokens, by batches",
        "Trained tokens by staleness: batch minus version that sampled the token.",
        "nearly all of them are at the bound, and `behavior_outside_share` grows",
        "lower `async.ahead` or `async.max_staleness`",
    ),
    Metric(
        "masked_tokens",
        "tokens",
        "Left out of the loss since they were staler than the bound (`async.on_deadline: mask`).",
        "more than a few percent of `trained_tokens`: long answers lose their beginnings",
        "raise `async.max_staleness`, or use `async.on_deadline: wait`",
    ),
    Metric(
        "late_groups",
        "groups",
        "Trained after their deadline (`mask` and `late`).",
        "in every batch",
        "raise `async.max_staleness`, or use `async.on_deadline: wait`",
    ),
    Metric("lost_branch_tokens", "tokens", "Sampled by versions that a restore took back."),
    Metric("queue_groups", "groups", "Ready, waiting for a batch, when this one was done."),
    Metric(
        "running_groups",
        "groups",
        "In generation or not yet scored, when this batch was done.",
        "0, or near it, while batches are still to come: engines had nothing to do",
        "raise `async.ahead` or `async.max_staleness`",
    ),
)

STEP = (
    Metric(
        "loss",
        "",
        "Of the policy, mean over the batch's steps. That of a clipped surrogate is about 0 at the first step, and "
        "tells "
        "little; its gradient is what trains.",
        "not finite, or growing without end",
        "lower `trainer.optimizer.lr`; see `grad_norm`",
    ),
    Metric(
        "grad_norm",
        "",
        "L2 norm of the gradient before clipping, the largest of the batch's steps.",
        "many times `trainer.max_grad_norm` again and again, or 0",
        "many times: lower `trainer.optimizer.lr`, or look for samples with odd rewards; 0: see `equal_groups`",
    ),
    Metric(
        "skipped",
        "true or false",
        "Whether a step was left out: its gradient was not finite, or nothing was to be trained.",
        "more than once in a while; ten in a row end the run",
        "lower `trainer.optimizer.lr`, use `model.dtype: float32`, or mend a loss of yours",
    ),
    Metric(
        "clip_fraction",
        "share",
        "Trained tokens whose ratio was clipped. With one step a batch, or `algorithm.proximal: current`, the ratio is "
        "1, and it is 0; not so where the ratio is to the policy that sampled (`algorithm.objective: naive`, "
        "`algorithm.proximal: behavior`).",
        "above about 0.2: most of what a step could do is cut off",
        "lower `trainer.optimizer.lr`, `algorithm.updates_per_batch` or `algorithm.epochs_per_batch`",
    ),
    Metric(
        "approx_kl",
        "nats a token",
        "k3 estimate of KL(policy that sampled || policy that is trained), over all epochs.",
        "above 0.05 for several batches: the ratios correct for more than they can",
        "lower `trainer.optimizer.lr`, `async.max_staleness` or `algorithm.epochs_per_batch`, or set "
        "`algorithm.stop_kl`",
        alarms.step_kl_rises,
    ),
    Metric(
        "reference_kl",
        "nats a token",
        "KL to the reference, by the estimator of the config; null without a reference.",
        "above 0.1 and doubled within 20 batches: the policy leaves what it was made from",
        "raise `algorithm.kl.coefficient` or set `algorithm.kl.target`, lower `trainer.optimizer.lr`, and read what it "
        "writes: a reward that can be tricked is the usual cause",
        alarms.reference_kl_rises,
    ),
    Metric("kl_coefficient", "", "Of the penalty on that KL, where it moves (`algorithm.kl.target`)."),
    Metric(
        "entropy",
        "nats a token",
        "Of the trained policy over the whole vocabulary; null where `trainer.record_entropy` is off.",
        "less than a fifth of what it began with, while the reward stands and is not near its best: nothing is "
        "explored "
        "any more. Or it rises: the policy becomes noise",
        "raise `algorithm.clip_high` or `algorithm.entropy`, lower `trainer.optimizer.lr`, or sample at "
        "`rollout.sampling.temperature: 1`",
        alarms.entropy_falls,
    ),
    Metric(
        "kept_mass",
        "share",
        "The trained policy's probability of what top-p and top-k kept; null without them.",
        "it falls by a tenth: the policy drifts to where neither loss nor KL sees it",
        "raise `rollout.sampling.top_p` and `rollout.sampling.top_k`, or lower `trainer.optimizer.lr`",
        alarms.kept_mass_falls,
    ),
    Metric(
        "critic_loss",
        "",
        "Of the value model; null without one.",
        "it does not fall in the first tens of batches",
        "raise `critic.warmup_batches` or `critic.optimizer.lr`",
    ),
    Metric("own", "by name", "What a loss and weights of yours report, per trained token."),
    Metric("epochs", "a list", "What each pass over the batch did, see below."),
)

EPOCH = (
    Metric("steps", "steps", "Optimiser steps."),
    Metric("approx_kl", "nats a token", "As of the batch, of this pass alone."),
    Metric(
        "step_kl",
        "nats a token",
        "k3 estimate of KL(policy that the batch began with || policy that is trained); null with several steps in a "
        "pass and no `algorithm.proximal: recompute`, since the former is not known.",
        "above about 0.02 in the last pass",
        "set `algorithm.stop_kl`, or lower `algorithm.epochs_per_batch`",
    ),
    Metric("clip_fraction", "share", "As of the batch, of this pass alone."),
)

CORRECTION = (
    Metric(
        "drift_mean_abs",
        "nats a token",
        "Mean |log-prob under the weights that the batch began with - log-prob that the token came with|: how far the "
        "policy has moved since, and the mismatch. (With several steps and no `algorithm.proximal: recompute`, over "
        "the "
        "tokens of the first step.)",
        "above about 0.1, or rising from batch to batch",
        "lower `async.max_staleness` or `trainer.optimizer.lr`",
    ),
    Metric("drift_max_abs", "nats", "The largest of these."),
    Metric(
        "mismatch_mean_abs",
        "nats a token",
        "Mean |trainer's - engine's log-prob| by the same weights; null where no such token was at hand.",
        "above 1e-4 in float32, above about 0.02 in bfloat16: engine and trainer do not compute the same model",
        "of a model with experts, set `algorithm.router_replay`; use `model.dtype: float32` and leave `engine.dtype` "
        "out, to find out whether it is rounding; report it if not",
    ),
    Metric("mismatch_max_abs", "nats", "The largest of these."),
    Metric("mismatch_tokens", "tokens", "That it was measured on: trained ones, and those of the gap sample."),
    Metric(
        "behavior_weight_mean",
        "",
        "Mean weight proximal / behaviour of the trained tokens.",
        "far from 1: the samples are not those of the policy any more",
        "lower `async.max_staleness` or `trainer.optimizer.lr`",
    ),
    Metric(
        "behavior_outside_share",
        "share",
        "Trained tokens whose weight was outside of `algorithm.behavior.low` and `algorithm.behavior.high`.",
        "above about 0.01",
        "lower `async.max_staleness` or `trainer.optimizer.lr`; widen the bounds last",
    ),
    Metric(
        "effective_token_share",
        "share",
        "Kish's effective number of tokens under these weights, of the trained ones.",
        "below about 0.5: half of the batch counts for nothing",
        "lower `async.max_staleness` or `trainer.optimizer.lr`",
    ),
)

LOST = (
    Metric(
        "failed_samples",
        "samples, by kind",
        "That failed since the batch before. `totals.failure_words` says why.",
        "more than 5 % of what is generated: what is left is biased towards what does not fail",
        "read the last reason, which the batch's line has; mend the reward or the environment, or raise its time limit "
        "(`reward.timeout_s`, `rollout.episode_timeout_s`)",
        alarms.samples_fail,
    ),
    Metric(
        "dropped_groups",
        "groups, by reason",
        "That were dropped while this batch was composed. `totals.drop_words` says why, where something went wrong.",
        "several times `groups`: most of generation is thrown away",
        "`zero_spread`: see `equal_groups`; `again: overdue`: raise `async.max_staleness`; of a filter of yours: "
        "loosen it",
    ),
)

TIMES = (
    Metric("step_s", "seconds", "From the end of the batch before to the end of this one."),
    Metric(
        "mfu",
        "share",
        "Model FLOPs utilisation: operations of the batch's rows, forward and backward, of those that the trainer's "
        "devices could have made in the time in which it computed, at the rate of a large matrix product that was "
        "measured when the run began. A prompt that samples of a micro-batch share counts once, the output layer "
        "where tokens are trained; what is computed twice does not count.",
        "far lower than with larger micro-batches",
        "raise `trainer.max_tokens_per_microbatch`; `model.gradient_checkpointing: false`, if memory allows",
    ),
    Metric("totals", "see below", "Running totals of the process when the batch was done."),
)
