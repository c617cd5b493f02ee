"""Prompts: datasets, their order and mixture, and how often each was passed."""
