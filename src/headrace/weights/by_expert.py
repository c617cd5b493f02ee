"""Experts by the names of the checkpoint format, each matrix by itself, as inference servers know them.

Where weights are published, all experts of a layer are one tensor, as transformers has them. The bytes of each expert's
matrices lie there one behind another: names are told apart, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.weights.plane import TensorEntry

_TOGETHER = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Of a module `experts`, [experts, rows, width]: what each expert's rows are, in equal parts."""


def by_expert(entry: TensorEntry) -> Iterator[TensorEntry]:
    """What lies in the tensor, in its order; the tensor itself, unless it has the experts of a layer."""
    module, _, name = entry.name.rpartition(".")
    parts = _TOGETHER.get(name)
    if parts is None or not module.endswith(".experts") or len(entry.shape) != 3:
        yield entry
        return
    experts, rows, width = entry.shape
    for expert in range(experts):
        for part in parts:
            yield TensorEntry(f"{module}.{expert}.{part}.weight", (rows // len(parts), width), entry.dtype, None)
