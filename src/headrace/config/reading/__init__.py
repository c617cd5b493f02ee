"""From a file and overrides to a validated config, and what is said of it."""
