"""Rollouts: workflows and environments, the policy as they see it, filters, and evaluation."""
