"""Ranks on one machine that are given the same rows: one reads them, and tells the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from layout_rank import LENGTHS, rows
from rank_processes import HELPERS
from reading_rank import LOST

from headrace.runtime.refs import InlineRefs
from headrace.training.rows.row_reader import RowReader

pytestmark = pytest.mark.cpu
SLOW, SOAK = pytest.mark.slow, [pytest.mark.slow, pytest.mark.soak]
READ = sum(given.tokens.nbytes for given in rows(kept=True))


def ranks(folder: Path, layout: dict[str, int], machines: Sequence[str], **more: Any) -> list[tuple[int, list[Any]]]:
    """Of each rank its exit code, and what it said."""
    (folder / "cases.json").write_text(json.dumps([{"layout": layout, "machines": machines, **more}]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    command = [sys.executable, str(HELPERS / "reading_rank.py"), str(folder)]
    started = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(len(machines))
    ]
    try:
        said = [process.communicate(timeout=100)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        (process.returncode, [json.loads(line) for line in each.splitlines()])
        for process, each in zip(started, said, strict=True)
    ]


@pytest.mark.parametrize(
    ("layout", "machines", "reading"),
    [
        pytest.param({"tp": 2, "pp": 2, "zero": 2}, ["a", "a", "b", "b"], [0, 2], id="in pairs", marks=SLOW),
        pytest.param({"dp": 2, "tp": 2, "zero": 3}, ["a"] * 4, [0, 2], id="two parts of the data", marks=SOAK),
    ],
)
def test_who_is_on_one_machine_reads_once(
    tmp_path: Path, layout: dict[str, int], machines: list[str], reading: list[int]
) -> None:
    """All have the same rows, bit for bit, and hear of the same error; the next ones come all the same."""
    for rank, (code, (said,)) in enumerate(ranks(tmp_path, layout, machines)):
        assert code == 0
        assert said["equal"]
        assert said["read"] == (READ if rank in reading else 0)
        assert (said["told"] > 0) == (rank not in reading)
        assert (said["lost"], said["again"]) == (LOST.number, len(LENGTHS))


@pytest.mark.timeout(120)
def test_who_waits_for_one_that_dies_as_it_tells_hears_of_it_at_once(tmp_path: Path) -> None:
    """Killed when half of a broadcast is out."""
    (first, (said,)), (second, nothing) = ranks(tmp_path, {"pp": 2, "zero": 2}, ["a", "a"], dies=True)
    assert (first, second, nothing) == (0, -signal.SIGKILL, [])
    assert said["error"]
    assert said["seconds"] < 10


def test_one_alone_reads_for_itself() -> None:
    refs = InlineRefs()
    given = rows(kept=True)[0]
    ref = refs.put({"tokens": given.tokens, "kept": given.kept})
    assert given.kept is not None
    reader = RowReader(refs)
    (found,) = reader({ref}, lambda shown: [given] if shown.get(ref) else [])
    assert found is given
    assert reader.taken() == (given.tokens.nbytes + given.kept.nbytes, 0)
    assert reader.taken() == (0, 0)
