"""`headrace serve`."""

from __future__ import annotations

import argparse
import os

from pydantic import ValidationError

from headrace.config import ConfigError
from headrace.config.explain import explain
from headrace.config.model import EngineConfig


def run(args: argparse.Namespace) -> int:
    token = None
    if args.token_env is not None:
        token = os.environ.get(args.token_env)
        if not token:
            raise ConfigError(f"--token-env names {args.token_env}, which is not set; export it, or leave it out")
    config = _engine_config(args)
    from headrace.cli.piped import tell
    from headrace.controller.serve import serve_model
    from headrace.runtime.event_loop import run_to_end

    try:
        run_to_end(
            lambda: serve_model(
                args.model,
                config,
                host=args.host,
                port=args.port,
                token=token,
                seed=args.seed,
                ready=lambda address: tell(f"serving {args.model} at {address}"),
            ),
            "headrace serve",
        )
    except ConfigError as error:
        # Here an engine's setting is an option of the command, not a key of a file.
        raise ConfigError(str(error).replace("engine.max_context", "--max-context")) from error
    return 0


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    try:
        return EngineConfig(
            dtype=args.dtype, max_concurrent_sequences=args.max_concurrent_sequences, max_context=args.max_context
        )
    except ValidationError as error:
        raise ConfigError(explain(EngineConfig, error, "headrace serve")) from error
