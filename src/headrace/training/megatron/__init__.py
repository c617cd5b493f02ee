"""A trainer's model as Megatron-Core's (extra `megatron`), under Hugging Face names; docs/megatron.md."""
