"""`headrace serve`."""

from __future__ import annotations

import argparse
import json

from pydantic import ValidationError

from headrace.config import ConfigError
from headrace.config.model import EngineConfig
from headrace.config.reading.explain import explain
from headrace.config.template import TemplateConfig
from headrace.config.values.tokens import token_of

_OPTIONS = {
    "engine.max_context": "--max-context",
    "data.template.file": "--template-file",
    "data.template.kwargs": "--template-kwargs",
}
"""What a setting of a file is called where it is an option of the command."""


def run(args: argparse.Namespace) -> int:
    token = None if args.token_env is None else token_of("--token-env", args.token_env)
    config, template = _engine_config(args), _template(args)
    from headrace.cli.piped import tell
    from headrace.controller.planning.out_of_memory import told_of
    from headrace.controller.serve import serve_model
    from headrace.runtime.event_loop import run_to_end

    lower = {
        "--max-concurrent-sequences": args.max_concurrent_sequences,
        "--max-context": "the model's" if args.max_context is None else args.max_context,
    }
    try:
        with told_of(lower):
            run_to_end(
                lambda: serve_model(
                    args.model,
                    config,
                    host=args.host,
                    port=args.port,
                    token=token,
                    seed=args.seed,
                    template=template,
                    ready=lambda address: tell(f"serving {args.model} at {address}"),
                ),
                "headrace serve",
            )
    except ConfigError as error:
        # Here an engine's setting is an option of the command, not a key of a file.
        words = str(error)
        for key, option in _OPTIONS.items():
            words = words.replace(key, option)
        raise ConfigError(words) from error
    return 0


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    try:
        return EngineConfig(
            dtype=args.dtype, max_concurrent_sequences=args.max_concurrent_sequences, max_context=args.max_context
        )
    except ValidationError as error:
        raise ConfigError(explain(EngineConfig, error, "headrace serve")) from error


def _template(args: argparse.Namespace) -> TemplateConfig:
    try:
        kwargs = json.loads(args.template_kwargs)
        return TemplateConfig(kwargs=kwargs, system=args.system, file=args.template_file)
    except ValueError as error:  # of pydantic, too
        faults = explain(TemplateConfig, error, "headrace serve") if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"--template-kwargs is {args.template_kwargs!r}, which is no JSON object of variables: {faults}; give one, "
            "as '{\"enable_thinking\": false}'"
        ) from error
