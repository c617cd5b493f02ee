"""The user's own classes and functions: found by name, and what they raise told in words."""
