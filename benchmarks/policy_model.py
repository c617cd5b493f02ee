"""The model and prompts that end-to-end benchmarks share.

A Qwen3 with random weights, of 4.98 M parameters unless another shape is asked for, made so that the end-of-sequence
token has about the same chance at every position: lengths are then geometric, as skewed as asked for, and do not depend
on what is being trained. The words of the vocabulary's upper half can be given a chance of their own: after one of them
nearly always comes another, so prompts of such words have long responses, as hard problems do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

VOCABULARY, PROMPTS = 512, 512
HALF = VOCABULARY // 2
EOS = 0


@dataclass(frozen=True, slots=True)
class PolicyShape:
    hidden: int = 256
    intermediate: int = 768
    layers: int = 6
    heads: int = 4
    head_dim: int = 64
    vocabulary: int = VOCABULARY
    """Words; prompts have but the first `VOCABULARY`, whose upper half is the upper one."""
    context: int = 1024


SMALL = PolicyShape()


def make_model(
    folder: Path, eos_chance: float, upper_eos_chance: float | None = None, shape: PolicyShape = SMALL
) -> None:
    """Write a Hugging Face folder with tokenizer. `eos_chance` of 0 makes every response as long as it may be.

    `upper_eos_chance`: that of the upper half, the same unless given.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=2,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        tie_word_embeddings=False,
        eos_token_id=EOS,
        pad_token_id=1,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    # Every embedding has one large component in common, which survives to the last norm; the head's rows are without
    # it, but for that of the end-of-sequence token, whose logit is thereby all but constant.
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[:, 0] = 0.0
        if upper_eos_chance is not None:
            _part_the_halves(model)
        model.lm_head.weight[EOS] = 0.0
        lower = _eos_row(model, eos_chance, _probe(2, HALF))
        if upper_eos_chance is None:
            row = lower
        else:
            upper = _eos_row(model, upper_eos_chance, _probe(HALF, VOCABULARY))
            row = (lower + upper) / 2
            # The second component is as large as the first, and negative after a word of the lower half.
            row[1] = (upper - lower)[0] / 2
        model.lm_head.weight[EOS] = row
    model.save_pretrained(folder)
    words = {f"<{i}>": i for i in range(shape.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<1>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<0>", pad_token="<1>").save_pretrained(folder)


def make_prompts(path: Path, every_upper: int | None = None) -> None:
    """JSONL of prompts of 8 to 24 random words; each `every_upper`th is of the upper half, the others of the lower."""
    generator = torch.Generator().manual_seed(1)
    with path.open("w") as stream:
        for number in range(PROMPTS):
            length = int(torch.randint(8, 25, (1,), generator=generator))
            words = (2, VOCABULARY)
            if every_upper is not None:
                words = (2, HALF) if number % every_upper else (HALF, VOCABULARY)
            ids = torch.randint(*words, (length,), generator=generator).tolist()
            stream.write(json.dumps({"prompt": " ".join(f"<{i}>" for i in ids)}) + "\n")


def _part_the_halves(model: Any) -> None:
    """After a word of one half, the other half's words have next to no chance."""
    half = torch.where(torch.arange(len(model.lm_head.weight)) < HALF, -1.0, 1.0)
    model.model.embed_tokens.weight[:, 1] = half
    model.lm_head.weight[:, 1] = 0.0
    size = model.model(_probe(HALF, VOCABULARY)).last_hidden_state[..., 1].mean()
    model.lm_head.weight[:, 1] = half * 8.0 / size


def _eos_row(model: Any, chance: float, probe: torch.Tensor) -> torch.Tensor:
    """The output layer's row that gives the end-of-sequence token this chance after such words."""
    output = model(probe, output_hidden_states=True)
    others = torch.logsumexp(output.logits[..., 1:], -1).mean()
    logit = torch.tensor(-1e4) if chance == 0 else others + torch.log(torch.tensor(chance / (1 - chance)))
    row = torch.zeros(output.hidden_states[-1].shape[-1])
    row[0] = logit / output.hidden_states[-1][..., 0].mean()
    return row


def _probe(low: int, high: int) -> torch.Tensor:
    return torch.randint(low, high, (8, 64), generator=torch.Generator().manual_seed(2))
