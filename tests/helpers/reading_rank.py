"""One rank of several that are given the same rows: says, a JSON object a line, what it was told.

`python reading_rank.py FOLDER RANK`: FOLDER has `cases.json`, which has one case: its layout; `machines`, for each
rank the name of the one that it is on; and `dies`, whether who reads is killed when a part of the second call's rows
has left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from layout_rank import _meeting, rows

from headrace.models.packing import PackRow
from headrace.runtime.refs import InlineRefs, Ref, RefLost, Refs
from headrace.training.layouts import group
from headrace.training.layouts.group import RankGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.rows.row_reader import RowReader

SECONDS = 60.0
LOST = Ref("rollout/0", 77, ("tokens",))


def equal(a: PackRow, b: PackRow) -> bool:
    """In all that is computed with."""
    arrays = [(a.tokens, b.tokens), (a.mask, b.mask), *((a.columns[name], b.columns[name]) for name in b.columns)]
    if (a.kept is None) != (b.kept is None) or a.columns.keys() != b.columns.keys():
        return False
    if a.kept is not None and b.kept is not None:
        arrays += [(a.kept.counts, b.kept.counts), (a.kept.data, b.kept.data)]
    return all(np.array_equal(one, other) for one, other in arrays)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    (case,) = json.loads((folder / "cases.json").read_text())
    said: dict[str, Any] = {}
    layout = Layout(**case["layout"])
    here = group.seen_here("cpu")
    on = case["machines"][rank]
    with mock.patch.object(group, "seen_here", return_value=replace(here, machine=on)):
        ranks = RankGroup(layout, rank, _meeting(folder / "meeting", rank), SECONDS, torch.device("cpu"))
    refs = InlineRefs()
    reader = RowReader(refs)
    reader.join(ranks.beside)
    wanted = rows(kept=True)

    def made(shown: Refs) -> list[PackRow]:
        found = []
        for given in wanted:
            shown.get(refs.put({"tokens": given.tokens, "text": "of no account"}))
            found.append(replace(given, columns={"advantages": np.arange(len(given), dtype=np.float32), "batch": 3.0}))
        return found

    def fails(shown: Refs) -> list[PackRow]:
        raise RefLost(LOST)

    found = reader((), made)
    said["equal"] = all(map(equal, found, made(refs))) and len(found) == len(wanted)
    said["read"], said["told"] = reader.taken()
    if case.get("dies"):
        if ranks.beside is not None and ranks.beside.reads:
            _die_after(ranks.beside, 2)
        began = time.monotonic()
        try:
            reader((), made)
        except RuntimeError as error:
            said["error"] = type(error).__name__
        said["seconds"] = time.monotonic() - began
        _say(said)
        os._exit(0)  # of a group that has lost one nobody takes leave
    try:
        reader((), fails)
    except RefLost as lost:
        said["lost"] = lost.ref.number
    said["again"] = len(reader((), made))
    ranks.close()
    _say(said)


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _die_after(beside: Any, tensors: int) -> None:
    """Killed as it is to broadcast one more."""
    of_reader, left = type(beside).of_reader, [tensors]

    def watched(self: Any, tensor: torch.Tensor) -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        of_reader(self, tensor)

    type(beside).of_reader = watched


if __name__ == "__main__":
    main()
