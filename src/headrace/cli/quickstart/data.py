"""The quickstart's JSONL files: prompts to train on, held-out prompts, and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from headrace.cli.quickstart.sizes import Size
from headrace.cli.quickstart.task import Problem, draw_problem

TRAIN_ROWS = 2_048
EVAL_ROWS = 256
GUESS_SHARE = 0.8


def write_data(folder: Path, seed: int, size: Size) -> None:
    """Write train.jsonl, eval.jsonl and sft.jsonl. No held-out prompt is in either of the others."""
    rng = np.random.default_rng(seed)
    held_out: dict[str, Problem] = {}
    while len(held_out) < EVAL_ROWS:
        problem = draw_problem(rng, size.prompt_shares)
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
    _write(folder / "train.jsonl", map(_question, draw(TRAIN_ROWS, size.prompt_shares)))
    worked = [_demonstration(problem, problem.working) for problem in draw(size.worked_rows, size.demonstration_shares)]
    mostly_guessed = [
        _demonstration(problem, problem.guess if rng.random() < GUESS_SHARE else problem.working)
        for problem in draw(size.mostly_guessed_rows, size.demonstration_shares)
    ]
    _write(folder / "sft.jsonl", [*worked, *mostly_guessed])


def _question(problem: Problem) -> dict[str, str]:
    return {"prompt": problem.prompt, "answer": problem.answer}


def _demonstration(problem: Problem, response: str) -> dict[str, str]:
    return {"prompt": problem.prompt, "response": response}


def _write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
