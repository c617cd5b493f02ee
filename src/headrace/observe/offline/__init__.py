"""What the offline trainers (`sft`, `rm`, `dpo`) record, and the views of it: as `observe/` has of a run."""
