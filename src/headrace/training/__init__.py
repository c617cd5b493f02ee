"""The trainer: packed micro-batches in, one optimiser step per batch, Hugging Face tensors out."""
