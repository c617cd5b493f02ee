"""Agents ask their episode's API, which is on loopback, past the proxies of the environment."""

from __future__ import annotations

from collections.abc import Mapping

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_PAST = ("no_proxy", "NO_PROXY")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def past_proxies(variables: Mapping[str, str]) -> dict[str, str]:
    """What is to be set beside `variables`, so that clients that go by them ask loopback itself: what is there, with
    the names of loopback. Nothing where no proxy is set."""
    if not any(variables.get(name) or variables.get(name.upper()) for name in _PROXIES):
        return {}
    values = [variables.get(name, "") for name in _PAST]
    lower, upper = values[0] or values[1], values[1] or values[0]  # most clients read one, in an order of their own
    return dict(zip(_PAST, map(_with_loopback, (lower, upper)), strict=True))


def _with_loopback(names: str) -> str:
    there = [name.strip() for name in names.split(",")]
    return names if "*" in there else ",".join(filter(None, (names, *(n for n in _LOOPBACK if n not in there))))
