"""`headrace scale`."""

from __future__ import annotations

import argparse

from headrace.config.errors import ConfigError
from headrace.config.values.paths import path_of
from headrace.controller.control_socket import ask

_HEARD_S = 3600.0
"""A server may take long to start."""


def run(args: argparse.Namespace) -> int:
    given = {"engines": args.engines, "rollout_workers": args.rollout_workers}
    wanted = {name: number for name, number in given.items() if number is not None}
    if not wanted:
        raise ConfigError("nothing to scale: give --engines N, --rollout-workers N, or both")
    ask(path_of(args.run_dir), {"scale": wanted}, lambda line: print(line, flush=True), seconds=_HEARD_S)
    return 0
