"""Small real jobs: a model of random weights with a tokenizer of characters, in Hugging Face format."""

import json
import subprocess
from pathlib import Path

import torch
import yaml
from forked import Forked, headrace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-=#:.,? "
EOS, PAD = 0, 1
_SHAPE = {
    "vocab_size": len(CHARACTERS) + 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "bos_token_id": None,
}
CONFIGS = {
    "qwen3": lambda: Qwen3Config(**_SHAPE, tie_word_embeddings=True),
    "qwen3_wide": lambda: Qwen3Config(
        **{**_SHAPE, "hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    ),
    "qwen3_moe_wide": lambda: Qwen3MoeConfig(
        **{**_SHAPE, "hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1},
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_SHAPE, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True
    ),
    "llama": lambda: LlamaConfig(**_SHAPE, tie_word_embeddings=False),
    "gemma3": lambda: Gemma3TextConfig(
        **_SHAPE, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=_SHAPE["vocab_size"],
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=96,
        eos_token_id=EOS,
        bos_token_id=EOS,
    ),
}


def make_model(folder: Path, architecture: str = "qwen3") -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture]())
    model.save_pretrained(folder)
    words = {"<eos>": EOS, "<pad>": PAD} | {character: i + 2 for i, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)
    return folder


def make_reward_model(folder: Path) -> Path:
    """A classifier of one class, with the tokenizer of `make_model`."""
    make_model(folder)
    config = AutoConfig.from_pretrained(folder, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


ALONE = {"engine__max_concurrent_sequences": 1}
"""What is decoded alone has the same log-probs each time, bit for bit. Otherwise their last bits depend on what is
decoded beside it, and so on time."""


def make_job(folder: Path, **changes: object) -> Path:
    """Model, data, reward and config in `folder`; returns the config's path. `changes` are dotted keys with `__`."""
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "model")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(8) for b in range(5)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    (folder / "reward.py").write_text("def score(response, row):\n    return sum(map(ord, response)) % 7 / 7\n")
    config = {
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "eval.jsonl")},
        "reward": {"function": f"{folder}/reward.py:score", "workers": 1},  # in order
        "rollout": {
            "prompts_per_batch": 2,
            "samples_per_prompt": 3,
            "sampling": {"max_new_tokens": 8},
            "episode_timeout_s": 60,
        },
        "trainer": {"batches": 6, "optimizer": {"lr": 1e-3}},
        "engine": {"max_concurrent_sequences": 8},
        "checkpoint": {"every": 2},
        "runtime": {"threads": 2, "stall_timeout_s": 60},
    }
    for key, value in changes.items():
        *sections, name = key.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})  # type: ignore[assignment]
        place[name] = value
    path = folder / "grpo.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def start(*arguments: str | Path, cwd: Path | None = None) -> Forked:
    """`headrace ...` in a process of its own."""
    return headrace([*map(str, arguments)], cwd)


def run(*arguments: str | Path, cwd: Path | None = None, timeout: float = 120) -> tuple[int, str]:
    process = start(*arguments, cwd=cwd)
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out
