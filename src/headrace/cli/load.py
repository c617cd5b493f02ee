"""A config for the commands about training, with notes on what in it has no effect."""

from __future__ import annotations

import argparse
import sys

from headrace.config import TrainConfig, load_config
from headrace.config.ineffective import ineffective


def load_train_config(args: argparse.Namespace) -> TrainConfig:
    config = load_config(TrainConfig, args.config, args.overrides)
    for line in ineffective(config):
        print(f"headrace: note: {line}", file=sys.stderr)
    return config
