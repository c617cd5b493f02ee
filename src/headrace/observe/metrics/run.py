"""The rows of the running totals, and of `summary.json`."""

from __future__ import annotations

from headrace.observe import alarms
from headrace.observe.metrics.metric import Metric

_AGAINST_WAITS = {
    "generation": "raise `engine.max_concurrent_sequences` and `async.ahead`, or lower "
    "`rollout.sampling.max_new_tokens`",
    "rewards and environments": "raise `reward.workers`, or make the reward or the environment quicker",
    "scores and advantages": "raise the `max_tokens_per_microbatch` of the models that score",
    "the critic": "raise `critic.max_tokens_per_microbatch`",
    "new weights": "raise `async.ahead` or `async.max_staleness`",
    "the evaluation": "raise `evaluation.every`",
}

TOTALS = (
    Metric("elapsed_s", "seconds", "Since this process of the run began."),
    Metric("generated_tokens", "tokens", "That engines sampled, whatever became of them."),
    Metric("generated_samples", "samples", "That ended, failed ones included."),
    Metric("failed_samples", "samples, by kind", "Of them those that failed."),
    Metric("failure_words", "by kind", "Why the last of each kind failed."),
    Metric(
        "drop_words", "by reason", "What went wrong with the last group that was dropped; only where something did."
    ),
    Metric("reward_calls", "calls, by seconds", "Calls of reward functions by how long they took."),
    Metric("generate_s", "seconds", "In which the engines computed, added up over them."),
    Metric("train_s", "seconds", "In which the trainer computed, for batches that are done."),
    Metric(
        "mfu_s", "seconds", "That the trainer's steps would have taken at the rate of its devices' matrix products."
    ),
    Metric(
        "swap_stall_s",
        "seconds",
        "In which new weights kept the engines from decoding: their exchange, and computing again what was "
        "interrupted. Added up over the engines.",
        "an engine's is longer a batch than training on it, and more than 5 % of the time",
        "use `async.swap: keep`, which goes on with the old keys and values, or train on more with each version "
        "(`rollout.prompts_per_batch`)",
        alarms.swap_is_slow,
    ),
    Metric(
        "trainer_s",
        "seconds, by what for",
        "What the trainer's time went to; adds up to `elapsed_s`. The names are below.",
        "it waits more than 20 % of its time, in `async` and `one_step_off`. (On a CPU, where engines use the same "
        "processors, only the time counts in which nobody computed.)",
        "; ".join(f"for {what}: {act}" for what, act in _AGAINST_WAITS.items()),
        alarms.trainer_waits,
        _AGAINST_WAITS,
    ),
    Metric(
        "engines_s",
        "seconds, by what for",
        "What the engines' time went to, of several the mean of those that there were, lent ones left out; adds up to "
        "`elapsed_s`. The names are below.",
        "they wait while the trainer waits too: each waits for the other",
        "raise what the name has in parentheses: `async.max_staleness`, `async.ahead` or `async.table_gib`",
    ),
    Metric(
        "busy_s",
        "seconds, by who",
        "In which each that has a device computed: an engine (`engine 0`), the trainer, the critic; a model that "
        "scores (`reference`, `proximal`, `teacher`, `reward`), the engine of a judge, and each rank of a model in "
        "several (`trainer/1`). Of models that score and of ranks it is the time with a call at work there; a rank "
        "that waits for another within a pass is at work.",
    ),
    Metric(
        "device_s",
        "seconds, by device",
        "The same by device: what all that were on it computed, added up, a model in several ranks by these. A device "
        "of a cluster is named as `headrace check` draws it (`slot 0`, in a cluster that was joined with `of` and its "
        "node), one of this machine `cpu` or `cuda:1`; processors of another node are `cpu of` that. Of an inference "
        "server without a place in a cluster nobody knows where it is.",
    ),
    Metric("lent_s", "seconds", "In which the trainer's devices were lent to engines (`engine.lent`)."),
    Metric(
        "wait_s",
        "seconds, by side and what for",
        "Seconds in which a part of the run waited. Most parts wait nearly always, and cost nothing.",
    ),
)

SUMMARY = (
    Metric(
        "status",
        "",
        "running, finished, stopped (told to), failed, or killed (no process owns it, and it did not say why).",
        "failed or killed",
        "read `error`, then `headrace inspect`; `--resume` goes on from the last checkpoint",
    ),
    Metric("error", "", "Why it failed, in one line; null of a run that did not, and where its record is what failed."),
    Metric("version", "number", "Of the newest weights: batches trained."),
    Metric(
        "wall_s", "seconds", "That the run's processes ran, added up; a killed one's up to its last group or batch."
    ),
    Metric(
        "groups.issued",
        "groups",
        "Attempts ever started; = running + ready + trained + dropped.",
        "the sum is another: the record is damaged",
        "put back a copy of the run's folder, or begin again",
    ),
    Metric("groups.running", "groups", "In generation or not yet scored."),
    Metric("groups.ready", "groups", "Finished, waiting for a batch, or in the one that is being composed."),
    Metric("groups.trained", "groups", "Trained."),
    Metric("groups.dropped", "groups, by reason", "Never to be trained.", "see `dropped_groups`", "see there"),
    Metric("groups.drop_words", "by reason", "What went wrong with the last of these; only where something did."),
    Metric("samples.generated", "samples", "That ended, failed ones included."),
    Metric("samples.trained", "samples", "Of the trained batches."),
    Metric(
        "samples.truncated",
        "samples",
        "Those of them that a limit on tokens, context or turns cut off.",
        "see `truncated_samples`",
        "see there",
    ),
    Metric("samples.failed", "samples, by kind", "That failed.", "see `failed_samples`", "see there"),
    Metric("samples.failure_words", "by kind", "Why the last of these failed."),
    Metric("tokens.generated", "tokens", "That engines sampled, whatever became of them."),
    Metric("tokens.trained", "tokens", "That entered the loss of the trained batches, each once."),
    Metric("tokens.generated_per_s", "tokens a second", "Of `wall_s`."),
    Metric("tokens.trained_per_s", "tokens a second", "Of `wall_s`."),
    Metric(
        "tokens.masked",
        "tokens",
        "Of the trained batches, left out of the loss since they were staler than the bound. (Those of samples left "
        "out by "
        "`algorithm.truncated: mask` are not among them.)",
        "see `masked_tokens`",
        "see there",
    ),
    Metric("tokens.nonpad_share", "share", "Positions computed by the trainer that were not padding."),
    Metric("staleness.max", "batches", "Of a trained token: batch minus version that sampled it."),
    Metric("staleness.mean", "batches", "Over trained tokens.", "see `staleness`", "see there"),
    Metric("staleness.histogram", "tokens, by batches", "Trained tokens by staleness (a number, as a string)."),
    Metric("reward.first", "reward", "Mean of the first trained batch, as scored."),
    Metric("reward.last", "reward", "Mean of the last trained batch.", "see `reward_mean`", "see there"),
    Metric("reward.terms", "reward, by name", "Of a reward of several terms `first` and `last` of each."),
    Metric("reward.call_p50_s", "seconds", "Half of the reward functions' calls took no longer."),
    Metric("reward.call_p99_s", "seconds", "99 % took no longer.", "see `reward_call_p99_s`", "see there"),
    Metric("eval.before", "reward", "On the held-out prompts of `data.eval`, of the first evaluated version."),
    Metric(
        "eval.after",
        "reward",
        "The same of the last one.",
        "it falls while `reward_mean` rises: the policy learns its prompts by heart, or tricks the reward",
        "read its answers; take more prompts, or lower `trainer.epochs`",
    ),
    Metric(
        "eval.sets",
        "by set",
        "Of each held-out set, that of `data.eval` included as `eval`: the score `before` and `after`, and of its last "
        "evaluation `version`, `prompts`, `failed` (samples) and `metrics`, of each `value`, `stderr` (standard error "
        "over prompts) and `prompts` (that it is a mean of).",
        "a `stderr` is as large as what changes",
        "take more prompts; more `evaluation.samples` where one prompt's answers differ much",
    ),
    Metric("eval.seconds", "seconds", "That evaluations took; the engine was pinned to one version meanwhile."),
    Metric(
        "eval.versions_behind",
        "versions",
        "The most versions that were made during one evaluation, which the engine could not take: what it generated "
        "for training then is so much staler.",
        "it is near `async.max_staleness`: generation for training stands still until an evaluation ends",
        "evaluate less often (`evaluation.every`), fewer prompts (`evaluation.max_prompts`) or fewer "
        "`evaluation.samples`",
    ),
    Metric(
        "best.version",
        "number",
        "Whose checkpoint is kept as the best (`checkpoint.keep_best`); 0 is the model that training began from.",
        "it is old, and `best.value` no longer rises: what is trained since makes it worse, or nothing",
        "go on from it with a lower `trainer.optimizer.lr`, or end here",
    ),
    Metric("best.metric", "", "By which it is the best, as `gsm/pass@1`."),
    Metric("best.value", "as the metric", "Of that version."),
    Metric("best.checkpoint", "", "Its folder in the run's; `checkpoints/best` leads to it. Null of version 0."),
    Metric("time.generate_s", "seconds", "In which the engines computed, added up over them."),
    Metric("time.train_s", "seconds", "In which the trainer computed, for batches that are done."),
    Metric(
        "time.swap_stall_s",
        "seconds",
        "In which new weights kept the engines from decoding, added up over the engines.",
    ),
    Metric(
        "time.trainer_s", "seconds, by what for", "What the trainer's time went to.", "see `trainer_s`", "see there"
    ),
    Metric("time.engines_s", "seconds, by what for", "What the engines' time went to.", "see `engines_s`", "see there"),
    Metric("time.wait_s", "seconds, by side and what for", "Waited by each part of the run."),
    Metric(
        "time.busy",
        "share, by who",
        "Of the run's time that in which each computed, as `busy_s` has it. Where they have a device by turns "
        "(`engine.colocated`), what all have together is the device's, ranks left out.",
        "all are small: each waits for another",
        "see `trainer_s` and `engines_s`, which tell for whom",
    ),
    Metric(
        "time.devices",
        "share, by device",
        "Of the run's time that in which each device was busy, as `device_s` has it: above 1 where several computed on "
        "it at the same time.",
        "one is small, and another is not",
        "give the busy one's work more devices (`cluster.place`, `engine.replicas`, `trainer.layout`), or have both "
        "on one (`cluster.colocate`)",
    ),
    Metric(
        "time.lent",
        "share",
        "Of the run's time that in which the trainer's devices were lent to engines (`engine.lent`).",
        "it is 0 with `engine.lent`: waits are too short for what lending takes",
        "the record's events of lendings have what each took and gave; leave `engine.lent` out if it is of no use",
    ),
    Metric("time.mfu.training", "share", "`mfu` of all batches.", "see `mfu`", "see there"),
    Metric(
        "time.mfu.run",
        "share",
        "The same of all of the run's time.",
        "far below that of training: the trainer waits, or publishes",
        "see `trainer_s`",
    ),
    Metric(
        "correction.outside_share",
        "share",
        "Trained tokens whose behaviour weight was outside of its bounds.",
        "see `behavior_outside_share`",
        "see there",
    ),
    Metric(
        "correction.effective_share",
        "share",
        "Effective number of tokens under those weights, of the trained ones.",
        "see `effective_token_share`",
        "see there",
    ),
    Metric(
        "mismatch.mean_abs",
        "nats a token",
        "The engines' log-probs against the trainer's, by the same weights.",
        "see `mismatch_mean_abs`",
        "see there",
    ),
    Metric("mismatch.max_abs", "nats", "The largest of these."),
    Metric("mismatch.tokens", "tokens", "That it was measured on."),
    Metric(
        "drift.mean_abs",
        "nats a token",
        "The log-probs that trained tokens came with against those when their batch began.",
        "see `drift_mean_abs`",
        "see there",
    ),
    Metric("drift.max_abs", "nats", "The largest of these."),
    Metric("kept_mass.first", "share", "Probability of what top-p and top-k keep, in the first batch."),
    Metric("kept_mass.last", "share", "The same in the last batch.", "see `kept_mass`", "see there"),
    Metric("alarms", "a list", "What rang when the run was last looked at: `metric`, `finding`, `act`."),
    Metric("seed", "number", "Of the config."),
    Metric("config_sha256", "", "Digest of what decides the run's result, as it is since it was last resumed."),
)
