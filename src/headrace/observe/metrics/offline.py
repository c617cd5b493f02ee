"""The rows of what the offline trainers record: a step, an evaluation, and `summary.json`."""

from __future__ import annotations

from headrace.observe.metrics.metric import Metric

_OVERFITS = "it rises on held-out rows while it falls in training: the rows are learned by heart"
_EARLIER = "end at `eval.lowest_loss_step`, take more rows, or lower `trainer.optimizer.lr`"

MEASURED = (
    Metric(
        "loss",
        "nats",
        "Mean over the batch, or the held-out rows: `sft` a token of the responses, `rm` and `dpo` a pair.",
        _OVERFITS,
        _EARLIER,
    ),
    Metric(
        "accuracy",
        "share",
        "`dpo`, `rm`: pairs whose chosen response has the higher reward; a tie, as before the first step, is none. "
        "`sft`, held-out rows only: response tokens that are the model's first choice.",
        "near 0.5 for pairs after many steps: the pairs do not tell what is better, or are labelled the wrong way "
        "round",
        "read some pairs; raise `trainer.optimizer.lr` if the loss hardly moves",
    ),
    Metric(
        "margin",
        "reward",
        "Mean over pairs: reward of the chosen response less that of the rejected one.",
        "it grows without end while held-out accuracy stands",
        "raise `beta`, or lower `trainer.optimizer.lr`",
    ),
    Metric(
        "chosen_reward",
        "reward",
        "`dpo`: `beta` x (the response's log-prob - the reference's), mean over pairs; with a loss of yours by the "
        "`beta` of the config all the same. `rm`: the score, with the head's bias, which the written model has not.",
    ),
    Metric("rejected_reward", "reward", "The same of the rejected responses."),
    Metric(
        "chosen_logprob",
        "nats",
        "`dpo`: log-prob of the chosen response, mean over pairs; of a token with `per_length`.",
        "it falls well below the reference's: the policy moves away from both responses",
        "lower `trainer.optimizer.lr`, raise `beta`, or use `loss: ipo`",
    ),
    Metric("rejected_logprob", "nats", "The same of the rejected responses."),
    Metric("reference_chosen_logprob", "nats", "The reference's, of the chosen responses. It stays on the same rows."),
    Metric("reference_rejected_logprob", "nats", "The reference's, of the rejected responses."),
)

OFFLINE_STEP = (
    Metric("step", "number", "From 1."),
    Metric("branch", "number", "Of the process that made it: each resumed one is a new branch."),
    Metric("rows", "rows", "Demonstrations or pairs of the batch."),
    Metric("measured", "see below", "What the batch was measured at, by the weights before the step."),
    Metric(
        "grad_norm",
        "",
        "L2 norm of the gradient before clipping.",
        "many times `trainer.max_grad_norm` again and again",
        "lower `trainer.optimizer.lr`, or look for odd rows",
    ),
    Metric("lr", "", "Learning rate of the step."),
    Metric(
        "skipped",
        "true or false",
        "Whether the gradient was not finite, so that the weights stayed.",
        "more than once in a while",
        "lower `trainer.optimizer.lr`, use `model.dtype: float32`, or mend a loss of yours",
    ),
    Metric("trained_tokens", "tokens", "Tokens of responses."),
    Metric("forwarded_tokens", "tokens", "Tokens that were computed, prompts included; what a pair begins with once."),
    Metric("padding_tokens", "tokens", "Positions that were computed for nothing."),
    Metric("elapsed_s", "seconds", "Of training, all processes together and without evaluations, when it was done."),
)

OFFLINE_EVALUATION = (
    Metric("step", "number", "Steps that were done; 0 before training."),
    Metric("branch", "number", "Of the process."),
    Metric("rows", "rows", "Held-out demonstrations or pairs."),
    Metric("measured", "see above", "Over all of them."),
    Metric("seconds", "seconds", "That it took."),
)

OFFLINE_SUMMARY = (
    Metric("status", "", "running, finished, stopped (told to), failed, or killed."),
    Metric("error", "", "Why it failed, in one line; null of one that did not."),
    Metric("kind", "", "The command: sft, rm or dpo."),
    Metric("steps", "steps", "Done."),
    Metric("skipped_steps", "steps", "Whose gradient was not finite.", "more than a few", "see `skipped`"),
    Metric("first_loss", "nats", "Of the first batch."),
    Metric("last_loss", "nats", "Of the last batch.", "see `loss`", "see there"),
    Metric("tokens", "tokens", "Computed, prompts included."),
    Metric("trained_tokens", "tokens", "Of responses."),
    Metric("padding_tokens", "tokens", "Positions that were computed for nothing."),
    Metric("wall_s", "seconds", "Of training alone."),
    Metric("tokens_per_s", "tokens a second", "Of `wall_s`."),
    Metric("last", "by name", "What the last batch was measured at."),
    Metric("eval.rows", "rows", "Held out."),
    Metric("eval.before", "by name", "What they were measured at before training."),
    Metric("eval.after", "by name", "The same at the last evaluation.", "see `loss`", "see there"),
    Metric("eval.lowest_loss_step", "number", "Steps after which their loss was the lowest.", _OVERFITS, _EARLIER),
    Metric("seed", "number", "Of the config."),
    Metric("config_sha256", "", "Digest of what decides the result: a resumed run must have the same."),
)
"""`summary.json` has `model`, the folder that was written, as well."""
