"""The processes that score, and how they are spoken to, refreshed and ended."""
