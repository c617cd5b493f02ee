"""The quickstart's JSONL files: prompts to train on, held-out prompts, and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from headrace.cli.quickstart.task import Problem, draw_problem

TRAIN_ROWS = 2048
EVAL_ROWS = 256
WORKED_ROWS = 14_080
"""Demonstrations that all work the answer out: from them the model learns to add."""
MOSTLY_DIRECT_ROWS = 1_280
"""Demonstrations after them, which teach the model to blurt the answer out."""
DIRECT_SHARE = 0.7


def write_data(folder: Path, seed: int) -> None:
    """Write train.jsonl, eval.jsonl and sft.jsonl. No held-out prompt is in either of the others."""
    rng = np.random.default_rng(seed)
    held_out: dict[str, Problem] = {}
    while len(held_out) < EVAL_ROWS:
        problem = draw_problem(rng)
        held_out.setdefault(problem.prompt, problem)

    def draw(rows: int) -> list[Problem]:
        drawn: list[Problem] = []
        while len(drawn) < rows:
            problem = draw_problem(rng)
            if problem.prompt not in held_out:
                drawn.append(problem)
        return drawn

    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "eval.jsonl", map(_question, held_out.values()))
    _write(folder / "train.jsonl", map(_question, draw(TRAIN_ROWS)))
    worked = [_demonstration(problem, problem.working) for problem in draw(WORKED_ROWS)]
    mixed = [
        _demonstration(problem, problem.answer if rng.random() < DIRECT_SHARE else problem.working)
        for problem in draw(MOSTLY_DIRECT_ROWS)
    ]
    _write(folder / "sft.jsonl", [*worked, *mixed])


def _question(problem: Problem) -> dict[str, str]:
    return {"prompt": problem.prompt, "answer": problem.answer}


def _demonstration(problem: Problem, response: str) -> dict[str, str]:
    return {"prompt": problem.prompt, "response": response}


def _write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
