"""A small model that calls a tool, in Qwen 3's chats: made by `headrace sft` from random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from looking_up import VALUES, question
from qwen3_chats import QWEN3, TOOL, qwen3_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

CONTEXT = 4096
_DEMONSTRATIONS, _QUESTIONS = 1760, 3
_CALL = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"key" :"%s"}}\n</tool_call>'
"""With spaces that no template writes: rendered anew it has other ids."""
_THOUGHTS = "<think>\nNobody told me %s.\n</think>\n\n", "<think>\nNow I know.\n</think>\n\n"
_ASSISTANT, _TOOL = "{%- if m.role == 'assistant' %}", "{%- elif m.role == 'tool' %}"
_VERBATIM = (
    QWEN3.partition(_ASSISTANT)[0]
    + _ASSISTANT
    + "{{- '<|im_start|>assistant\\n' }}"
    + "{%- generation %}{{- m.content + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}"
    + _TOOL
    + QWEN3.partition(_TOOL)[2]
)
"""Qwen 3's, with what the assistant said to the letter, thoughts of earlier turns included."""
_CONFIG = """
model: {path: random}
data:
  train: demonstrations.jsonl
  messages_column: messages
  template: {file: verbatim.jinja}
trainer:
  samples_per_batch: 8
  optimizer: {lr: 3.0e-3, betas: [0.9, 0.99]}
  lr_schedule: {kind: cosine, warmup_steps: 20, min_ratio: 0.1}
runtime: {threads: 1}
"""


def make_caller(folder: Path) -> Path:
    """The model's folder, below `folder`, with a tokenizer that has Qwen 3's template. Asked as `question` asks, it
    calls the tool, and tells what that told; a minute on one core."""
    rng = np.random.default_rng(0)
    conversations = [_conversation(rng) for _ in range(_DEMONSTRATIONS)]
    rows = [json.dumps({"messages": each, "tools": [TOOL]}) + "\n" for each in conversations]
    (folder / "demonstrations.jsonl").write_text("".join(rows))
    (folder / "verbatim.jinja").write_text(_VERBATIM)
    (folder / "sft.yaml").write_text(_CONFIG)
    text = qwen3_tokenizer().apply_chat_template(
        conversations[0], tools=[TOOL], chat_template=_VERBATIM, tokenize=False
    )
    tokenizer = qwen3_tokenizer(merges=400, learnt=[text, *VALUES])
    tokenizer.save_pretrained(folder / "random")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.06,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "random")
    command = [sys.executable, "-m", "headrace.cli.main", "sft", "sft.yaml", "--dir", "sft"]
    subprocess.run(command, cwd=folder, check=True, timeout=400, stdout=subprocess.DEVNULL)
    model = folder / "sft" / "model"
    tokenizer.save_pretrained(model)
    return model


def _conversation(rng: np.random.Generator) -> list[dict[str, str]]:
    messages = []
    for _ in range(_QUESTIONS):
        key, known = rng.choice([*VALUES], 2)
        value, thinks = rng.integers(10), rng.random() < 0.5
        before, after = (_THOUGHTS[0] % key, _THOUGHTS[1]) if thinks else ("", "")
        messages += [
            {"role": "user", "content": question(key, thinks, known if rng.random() < 0.5 else "")},
            {"role": "assistant", "content": before + _CALL % key},
            {"role": "tool", "content": f"{value} units"},
            {"role": "assistant", "content": f"{after}It  is {value}."},
        ]
    return messages
