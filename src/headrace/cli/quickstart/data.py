"""The quickstart's JSONL files: prompts to train on, held-out prompts, and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from headrace.cli.quickstart.task import DEMONSTRATION_SHARES, PROMPT_SHARES, Problem, draw_problem

TRAIN_ROWS = 2_048
EVAL_ROWS = 256
WORKED_ROWS = 16_000
"""Demonstrations that all work the answer out: from them the model learns to add."""
MOSTLY_GUESSED_ROWS = 1_536
"""Demonstrations after them, which teach the model to guess."""
GUESS_SHARE = 0.8


def write_data(folder: Path, seed: int) -> None:
    """Write train.jsonl, eval.jsonl and sft.jsonl. No held-out prompt is in either of the others."""
    rng = np.random.default_rng(seed)
    held_out: dict[str, Problem] = {}
    while len(held_out) < EVAL_ROWS:
        problem = draw_problem(rng, PROMPT_SHARES)
        held_out.setdefault(problem.prompt, problem)

    def draw(rows: int, shares: Mapping[int, float]) -> list[Problem]:
        drawn: list[Problem] = []
        while len(drawn) < rows:
            problem = draw_problem(rng, shares)
            if problem.prompt not in held_out:
                drawn.append(problem)
        return drawn

    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "eval.jsonl", map(_question, held_out.values()))
    _write(folder / "train.jsonl", map(_question, draw(TRAIN_ROWS, PROMPT_SHARES)))
    worked = [_demonstration(problem, problem.working) for problem in draw(WORKED_ROWS, DEMONSTRATION_SHARES)]
    mostly_guessed = [
        _demonstration(problem, problem.guess if rng.random() < GUESS_SHARE else problem.working)
        for problem in draw(MOSTLY_GUESSED_ROWS, DEMONSTRATION_SHARES)
    ]
    _write(folder / "sft.jsonl", [*worked, *mostly_guessed])


def _question(problem: Problem) -> dict[str, str]:
    return {"prompt": problem.prompt, "answer": problem.answer}


def _demonstration(problem: Problem, response: str) -> dict[str, str]:
    return {"prompt": problem.prompt, "response": response}


def _write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
