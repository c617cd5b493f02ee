"""A config for the commands that train, with notes on what in it has no effect."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TypeVar

from headrace.config import DPOConfig, RMConfig, SFTConfig, TrainConfig, load_config
from headrace.config.reading.unused_keys import ineffective
from headrace.observe.untrusted import visible

C = TypeVar("C", TrainConfig, SFTConfig, RMConfig, DPOConfig)


def load_noted(kind: type[C], args: argparse.Namespace) -> C:
    """Raises ConfigError."""
    config = load_config(kind, args.config, args.overrides)
    tell_notes(ineffective(config))
    return config


def tell_notes(lines: Iterable[str]) -> None:
    """What the user should know, and what stops nothing."""
    for line in lines:
        tell_note(line)


def tell_note(line: str) -> None:
    """Beside the output."""
    print(f"headrace: note: {visible(line)}", file=sys.stderr, flush=True)
