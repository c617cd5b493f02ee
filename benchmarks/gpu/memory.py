"""A whole run at a real size: what it takes of the device at its height, beside what `check` says before."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.shapes import VOCABULARY, free_memory, random_model
from headrace.config import TrainConfig
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import train

_GIB = 2**30


def memory_row(shape: str, recipe: str, *, offload: bool = False) -> dict[str, Any]:
    """Three batches in bfloat16, with answers of 256 tokens at most, and 4,096 tokens a micro-batch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, shape)
        config = TrainConfig.model_validate(
            {
                "model": {"path": str(folder / "model"), "dtype": "bfloat16"},
                "data": {"train": str(folder / "train.jsonl")},
                "reward": {"function": f"{folder}/reward.py:score", "workers": 1},
                "algorithm": {"recipe": recipe},
                "rollout": {
                    "prompts_per_batch": 8,
                    "samples_per_prompt": 4,
                    "sampling": {"max_new_tokens": 256},
                    "filters": [],
                },
                "trainer": {"batches": 3, "optimizer": {"offload": offload}},
                "engine": {"max_concurrent_sequences": 64, "max_context": 1024},
                "checkpoint": {"every": 100},
            }
        )
        free_memory()
        before = torch.cuda.memory_allocated()
        plan = make_plan(config)
        torch.cuda.reset_peak_memory_stats()
        ended = asyncio.run(train(plan, folder / "run", "new"))
        peak, reserved = torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved()
    free_memory()
    return {
        "shape": shape,
        "recipe": recipe,
        "offload": offload,
        "status": ended.status,
        "planned_gib": plan.memory.total / _GIB,
        "peak_gib": peak / _GIB,
        "reserved_gib": reserved / _GIB,
    }


def _write(folder: Path, shape: str) -> None:
    """Model, tokenizer, prompts and a reward, in a user's formats."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = random_model(shape, torch.bfloat16, of_llama=True)
    model.config.eos_token_id = model.generation_config.eos_token_id = 0
    model.save_pretrained(folder / "model")
    words = {f"<{i}>": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<1>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<0>", pad_token="<1>")
    saved.save_pretrained(folder / "model")
    prompts = (" ".join(f"<{2 + (37 * row + place) % 1000}>" for place in range(64)) for row in range(64))
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    (folder / "reward.py").write_text("def score(response, row):\n    return sum(map(ord, response)) % 101 / 101\n")
