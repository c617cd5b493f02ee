"""What a run gave to functions of the user's own, written down: rows to a stage, KLs to their controller."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

_STAGE = """
import json

def note(tokens, loss_mask, reward, truncated, batch, advantages, group, episode, {columns}):
    row = dict(tokens=tokens, loss_mask=loss_mask, reward=reward, truncated=truncated, batch=batch,
               advantages=advantages, group=list(group.key), episode=episode, {given})
    row = {{name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}}
    with open({path!r}, "a") as file:
        file.write(json.dumps(row) + "\\n")
    return {{"noted": 0.0}}
"""
_CONTROLLER = """
import json

def follow(coefficient, kl, samples):
    with open({path!r}, "a") as file:
        file.write(json.dumps([kl, samples]) + "\\n")
    return coefficient
"""
_ALWAYS = ["tokens", "loss_mask", "reward", "truncated", "batch", "advantages", "group", "episode"]


@dataclass(frozen=True)
class Note:
    """A row as it was when its advantage was there."""

    tokens: list[int]
    loss_mask: list[bool]
    reward: float
    truncated: bool
    batch: int
    advantages: list[float]
    group: list[int]
    episode: int
    others: dict[str, list[float]]

    @property
    def last_chosen(self) -> int:
        """Place of the last token that the policy chose."""
        return max(i for i, chosen in enumerate(self.loss_mask) if chosen)


def note_stage(folder: Path, *columns: str) -> dict[str, object]:
    """For `algorithm.stages`: writes each row to `folder`/notes.jsonl, these columns beside what all notes have."""
    folder.mkdir(parents=True, exist_ok=True)
    given = "".join(f"{name}={name}, " for name in columns)
    program = _STAGE.format(columns=", ".join(columns), given=given, path=str(folder / "notes.jsonl"))
    (folder / "note.py").write_text(program.replace(", )", ")"))
    reads = [*_ALWAYS, *columns]
    return {"name": "note", "function": f"{folder}/note.py:note", "reads": reads, "writes": ["noted"]}


def notes(folder: Path) -> list[Note]:
    rows = [json.loads(line) for line in (folder / "notes.jsonl").read_text().splitlines()]
    return [Note(**{name: row.pop(name) for name in ("tokens", "loss_mask", *_ALWAYS[2:])}, others=row) for row in rows]


def note_kl(folder: Path) -> str:
    """For `algorithm.kl.controller`: writes what it is given to `folder`/kl.jsonl and changes nothing."""
    (folder / "note_kl.py").write_text(_CONTROLLER.format(path=str(folder / "kl.jsonl")))
    return f"{folder}/note_kl.py:follow"


def noted_kl(folder: Path) -> list[tuple[float, int]]:
    """Of each batch the mean KL and the samples that it is over."""
    rows = [json.loads(line) for line in (folder / "kl.jsonl").read_text().splitlines()]
    return [(kl, samples) for kl, samples in rows]


@lru_cache(16)
def _load(kind: Any, folder: Path) -> Any:
    return kind.from_pretrained(folder).eval()


@torch.no_grad()
def model_values(folder: Path, tokens: list[int]) -> list[float]:
    """Of the critic in `folder`: entry i is the value of the state after tokens 0 to i."""
    model = _load(AutoModelForTokenClassification, folder)
    return model(input_ids=torch.tensor([tokens])).logits[0, :, 0].tolist()


@torch.no_grad()
def model_logprobs(folder: Path, tokens: list[int]) -> list[float]:
    """Of the policy in `folder`: entry i is the log-prob of token i after those before it; 0 for the first."""
    model = _load(AutoModelForCausalLM, folder)
    every = torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0].float(), -1)
    return [0.0, *every[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()]
