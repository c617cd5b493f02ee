"""`headrace serve`."""

from __future__ import annotations

import argparse
import asyncio
import os

from headrace.config import ConfigError
from headrace.config.model import EngineConfig


def run(args: argparse.Namespace) -> int:
    token = None
    if args.token_env is not None:
        token = os.environ.get(args.token_env)
        if not token:
            raise ConfigError(f"--token-env names {args.token_env}, which is not set; export it, or leave it out")
    config = EngineConfig(
        dtype=args.dtype, max_concurrent_sequences=args.max_concurrent_sequences, max_context=args.max_context
    )
    from headrace.controller.serve import serve_model

    asyncio.run(
        serve_model(
            args.model,
            config,
            host=args.host,
            port=args.port,
            token=token,
            seed=args.seed,
            ready=lambda address: print(f"serving {args.model} at {address}", flush=True),
        )
    )
    return 0
