"""Rewards, each scored in a child process that can be killed."""
