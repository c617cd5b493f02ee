"""The renderers of the package, each over a tokenizer that has the tokens that it looks for."""

from __future__ import annotations

import re
from typing import Any

from qwen3_chats import qwen3_tokenizer
from tokenizers import AddedToken

from headrace.config import ConfigError
from headrace.experience.text.chat_template import ChatTemplate
from headrace.gateway.agents.model_renderer import ModelRenderer


def with_tokens_of(name: str) -> tuple[Any, ModelRenderer]:
    """A tokenizer that has what the renderer of that name looks for, and the renderer."""
    tokenizer, told = qwen3_tokenizer(), ""
    while True:
        try:
            return tokenizer, ModelRenderer(name, "a/folder", ChatTemplate(tokenizer))
        except ConfigError as error:
            before, told = told, str(error)
        missing = re.search(r"(?:token|for) '([^']+)'", told.partition("refuses it")[2])
        assert missing is not None, told
        assert told != before
        tokenizer.add_tokens([AddedToken(missing[1], special=True, normalized=False)])
