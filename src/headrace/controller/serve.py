"""Serves one model over HTTP with the embedded engine, until told to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from headrace.config.model import EngineConfig
from headrace.config.template import TemplateConfig
from headrace.controller.building.engine_workers import load_engine
from headrace.controller.building.threads import inline_runtime
from headrace.controller.planning.cache_memory import plan_kv_cache
from headrace.controller.planning.prompt_notes import unread_notes
from headrace.controller.stopping import StopRequest
from headrace.experience.text.chat_template import ChatTemplate
from headrace.gateway.app import build_app
from headrace.gateway.server import check_host, serve
from headrace.models.loading import (
    check_model,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
    resolve_device,
)
from headrace.runtime.collection import rare_collections

logger = logging.getLogger(__name__)


async def serve_model(
    path: str,
    config: EngineConfig,
    *,
    host: str,
    port: int,
    token: str | None,
    seed: int,
    template: TemplateConfig,
    ready: Callable[[str], None],
    stop: StopRequest | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or `stop`. `ready` is given the address once requests are answered.

    Raises ConfigError, before the model is loaded, for a folder that lacks something, a context that is not the
    model's, a KV cache that does not fit, or a host beyond loopback without a token.
    """
    check_host(host, guarded=token is not None)
    check_model(path)
    tokenizer = load_tokenizer(path)
    chat_template = ChatTemplate.of(template, tokenizer)
    for note in unread_notes(chat_template):
        logger.warning("%s", note.replace("data.template.kwargs.", "--template-kwargs: "))
    model_config = read_model_config(path)
    stops = read_generation_stops(path, tokenizer)
    device = resolve_device("auto")
    dtype = config.dtype or "float32"
    max_context = plan_kv_cache(model_config, config, dtype, device).max_context
    runtime = inline_runtime(None, device=device)
    try:
        engines = await load_engine(path, config, dtype, runtime)
        app = build_app(
            engines,
            tokenizer,
            model_name=Path(path).name,
            clock=runtime.clock,
            token=token,
            max_context=max_context,
            vocab_size=model_config.get_text_config().vocab_size,
            eos_token_ids=stops,
            seed=seed,
            template=chat_template,
        )
        await engines.start()
        try:
            with stop or StopRequest() as told_to_stop:
                server = await serve(app, host, port)
                try:
                    ready(server.address)
                    with rare_collections():
                        await told_to_stop.wait()
                finally:
                    await server.close()
        finally:
            await engines.stop()
    finally:
        await runtime.close()
