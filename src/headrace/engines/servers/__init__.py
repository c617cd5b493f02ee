"""Inference servers as engines: one front for all of them, and for each the HTTP that it speaks."""
