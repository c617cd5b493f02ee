"""Builds a run from its config, checks it, supervises it and makes its checkpoints."""
