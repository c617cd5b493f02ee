"""Serves one model over HTTP with the embedded engine, until told to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from headrace.config.model import EngineConfig
from headrace.controller.stopping import StopRequest
from headrace.controller.threads import ThreadShare, available_threads
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.models.loading import (
    load_causal_lm,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
    resolve_device,
)
from headrace.rollout.http.app import build_app
from headrace.rollout.http.server import serve
from headrace.runtime.inline import InlineRuntime

_LOADING_LANE = "weights"


async def serve_model(
    path: str,
    config: EngineConfig,
    *,
    host: str,
    port: int,
    token: str | None,
    seed: int,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is given the address once requests are answered.

    Raises ConfigError for a model that cannot be loaded, or a host beyond loopback without a token.
    """
    tokenizer = load_tokenizer(path)
    model_config = read_model_config(path).get_text_config()
    stops = read_generation_stops(path, tokenizer)
    runtime = InlineRuntime(ThreadShare(available_threads(None)).around)
    dtype = getattr(torch, config.dtype or "float32")
    try:
        model = await runtime.compute(
            _LOADING_LANE, lambda: load_causal_lm(path, dtype=dtype, device=resolve_device("auto"))
        )
        engine = EmbeddedEngine(model, config=config, runtime=runtime)
        app = build_app(
            engine,
            tokenizer,
            model_name=Path(path).name,
            clock=runtime.clock,
            token=token,
            max_context=config.max_context or model_config.max_position_embeddings,
            vocab_size=model_config.vocab_size,
            eos_token_ids=stops,
            seed=seed,
        )
        await engine.start()
        try:
            with StopRequest() as stop:
                server = await serve(app, host, port)
                try:
                    ready(server.address)
                    await stop.wait()
                finally:
                    await server.close()
        finally:
            await engine.stop()
    finally:
        await runtime.close()
