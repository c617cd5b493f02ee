"""What `headrace sft`, `rm` or `dpo` would start, for `headrace check`."""
