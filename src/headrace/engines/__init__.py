"""Engines turn token ids into token ids, and say for each token its log-prob and weight version."""
