"""Ranks that train one model together: who they are, and what each has of it."""
