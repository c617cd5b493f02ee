"""The model, prompts and reward that end-to-end benchmarks share.

A Qwen3 of 4.98 M parameters with random weights, made so that the end-of-sequence token has about the same chance at
every position: lengths are then geometric, as skewed as asked for, and do not depend on what is being trained.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

VOCABULARY, HIDDEN, PROMPTS = 512, 256, 512
EOS = 0


def make_model(folder: Path, eos_chance: float) -> None:
    """Write a Hugging Face folder with tokenizer. `eos_chance` of 0 makes every response as long as it may be."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=EOS,
        pad_token_id=1,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    # Every embedding has one large component in common, which survives to the last norm; the head's rows are without
    # it, but for that of the end-of-sequence token, whose logit is thereby all but constant.
    common = torch.zeros(HIDDEN)
    common[0] = 1.0
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[EOS] = 0.0
        logit = -1e4 if eos_chance == 0 else _logit_for(model, eos_chance)
        model.lm_head.weight[EOS] = common * logit / _common_size(model)
    model.save_pretrained(folder)
    words = {f"<{i}>": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<1>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<0>", pad_token="<1>").save_pretrained(folder)


def make_prompts(path: Path) -> None:
    """JSONL of prompts of 8 to 24 random words."""
    generator = torch.Generator().manual_seed(1)
    with path.open("w") as stream:
        for _ in range(PROMPTS):
            length = int(torch.randint(8, 25, (1,), generator=generator))
            ids = torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()
            stream.write(json.dumps({"prompt": " ".join(f"<{i}>" for i in ids)}) + "\n")


def reward(response: str, row: dict[str, object]) -> float:
    """How many different characters the response has, of ten: cheap, and different between samples."""
    return (sum(map(ord, response)) % 101) / 101


def _probe() -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (8, 64), generator=torch.Generator().manual_seed(2))


def _common_size(model: torch.nn.Module) -> float:
    """Mean of the common component after the last norm."""
    return float(model.model(_probe()).last_hidden_state[..., 0].mean())  # type: ignore[operator]


def _logit_for(model: torch.nn.Module, chance: float) -> float:
    """The logit that gives the end-of-sequence token this chance beside the others' mean weight."""
    logits = model(_probe()).logits[..., 1:]
    others = torch.logsumexp(logits, -1).mean()
    return float(others + torch.log(torch.tensor(chance / (1 - chance))))
