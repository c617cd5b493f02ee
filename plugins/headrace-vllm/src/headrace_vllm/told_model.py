"""Which model a server has, as it is told."""

from __future__ import annotations

import json
from typing import Any


def told_model(config: Any) -> dict[str, Any]:
    """The config of the text model, as JSON, with all that its class fills in. `config`: vLLM's of the model. Where the
    checkpoint has a head beside tied embeddings, vLLM calls these untied until it has compared the two: here they are
    as the config has them."""
    found: dict[str, Any] = json.loads(config.hf_text_config.to_json_string(use_diff=False))
    if getattr(config, "word_embeddings_untied_by_checkpoint", False):
        found["tie_word_embeddings"] = True
    return found
