"""Hugging Face causal language models: loading them, packing samples into rows, and log-probs of packed rows."""
