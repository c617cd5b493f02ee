"""Training on a fixed dataset: `headrace sft`, `rm` and `dpo`, and the loop that they share."""
