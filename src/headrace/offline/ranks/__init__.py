"""Ranks that train the model of an offline trainer together, and how they are started."""
