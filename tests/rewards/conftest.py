"""Fixtures of the sandbox."""

from sandbox_fixtures import patient, tool

__all__ = ["patient", "tool"]
