"""Agents' sessions: an episode as an OpenAI API, each turn recorded token for token."""
