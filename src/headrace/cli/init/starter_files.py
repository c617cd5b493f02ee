"""The files that `headrace init` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

_CONFIG = """\
# All keys: docs/configuration.md. In an editor: `headrace schema > schema.json` completes and checks them.
model:
  path: model                  # a folder in Hugging Face format, or a name on the Hub

data:
  train: train.jsonl           # one JSON object a line: a prompt, and what its reward needs
  eval: eval.jsonl             # held out; scored before and after

reward:
  function: reward.py:score    # score(response, row) -> float, in a process of its own

rollout:
  prompts_per_batch: 16
  samples_per_prompt: 8
  sampling: {max_new_tokens: 256}

async:
  mode: async                  # sync | one_step_off | async
  max_staleness: 2

trainer:
  epochs: 1
  optimizer: {lr: 1.0e-6}

evaluation: {every: 20}
"""
_ASYNC = "async:\n  mode: async\n"
_SYNCHRONOUS = """\
  # That trainer is synchronous. `mode: sync`, with max_staleness taken out, is on-policy as it is.
"""
_REWARD = '''\
"""The reward: how good a response to a row's prompt is."""

import re


def score(response: str, row: dict) -> float:
    """1.0 if the last number in the response is the row's answer, else 0.0."""
    numbers = re.findall(r"-?\\d+(?:\\.\\d+)?", response)
    return float(bool(numbers) and float(numbers[-1]) == float(row["answer"]))
'''
_TEST = '''\
"""What the reward gives for answers that are right, wrong, and none. `headrace init` says how to run it."""

from reward import score

ROW = {"prompt": "What is 2 + 3?", "answer": "5"}


def test_the_right_answer_earns_all() -> None:
    assert score("2 and 3 make 5.", ROW) == 1.0


def test_a_wrong_answer_earns_nothing() -> None:
    assert score("2 + 3 = 6", ROW) == 0.0


def test_no_answer_earns_nothing() -> None:
    assert score("", ROW) == 0.0
'''
_README = """\
A run of Headrace: `headrace check config.yaml`, `headrace train config.yaml`; its reward is `reward.py`.
"""


def files(values: Mapping[str, Any], source: list[str] | None) -> dict[str, str]:
    """By name. `values`: sections of the config that came from `source`, over those that it begins with."""
    config = _CONFIG
    if source is not None:
        began = yaml.safe_load(_CONFIG)
        del began["rollout"], began["trainer"], began["evaluation"]
        if "terms" in values.get("reward", {}) or "path" in values.get("reward", {}).get("model", {}):
            del began["reward"]  # what is translated is all of it
        if "sets" in values.get("evaluation", {}) and "eval" not in values.get("data", {}):
            del began["data"]["eval"]
        text = yaml.safe_dump(_over(began, values), sort_keys=False).replace(_ASYNC, _ASYNC + _SYNCHRONOUS, 1)
        config = f"# Translated from {' '.join(source)}.\n" + text
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(2, 8) for b in (3, 5, 9, 14)]
    return {
        "config.yaml": config,
        "reward.py": _REWARD,
        "test_reward.py": _TEST,
        "train.jsonl": _lines(rows[:20]),
        "eval.jsonl": _lines(rows[20:]),
        "README.md": _README,
    }


def _lines(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _over(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged
