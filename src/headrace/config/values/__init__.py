"""Kinds of values that several sections have."""
