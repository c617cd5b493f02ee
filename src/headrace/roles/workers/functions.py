"""The user's functions and advantages of tokens, as a worker: `roles/columns/functions.py` has how they are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from headrace.config.train import TrainConfig
from headrace.experience.columns import FinishedGroup
from headrace.experience.header import GroupHeader, SampleHeader
from headrace.roles.columns.functions import LANE, Advantages, Columns, Functions
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.training.own_functions import load_pieces, load_stage_functions
from headrace.training.rows.packed_rows import ROW_TYPES


@dataclass(frozen=True, slots=True)
class FunctionsSpec:
    """From which the worker builds itself."""

    config: TrainConfig
    reads: tuple[str, ...]
    """Columns that the stage of advantages declares."""


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """What functions are told of a row: plain data, which any process can be given."""

    header: SampleHeader
    columns: Mapping[str, Any]
    """Refs and numbers, of the columns that are read."""


class FunctionsWorker:
    """See `AskedFunctions`. Columns are kept where it is. It has no state that outlives a call, but for what the user's
    modules hold."""

    kind: ClassVar[str] = LANE
    types: ClassVar[WireTypes] = ROW_TYPES.with_types(
        WireTypes(
            {
                "advantages": Advantages,
                "finished_group": FinishedGroup,
                "function_row": FunctionRow,
                "functions_spec": FunctionsSpec,
                "group_header": GroupHeader,
                "train_config": TrainConfig,
            }
        )
    )

    def __init__(self, spec: FunctionsSpec, host: Host) -> None:
        """Loads the user's code. Raises ConfigError."""
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        config = spec.config
        pieces, stages = load_pieces(config), load_stage_functions(config)
        self._functions = Functions.of(config, pieces, stages, host.refs, spec.reads)

    def stage(self, name: str, rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> Columns:
        """See `AskedFunctions.stage`."""
        return self._functions.stage(name, rows, groups)

    def advantages(self, rows: Sequence[FunctionRow], beta: float, moves: bool) -> Advantages:
        """See `AskedFunctions.advantages`."""
        return self._functions.advantages(rows, beta, moves)

    def coefficient(self, beta: float, kl: float, samples: int) -> float:
        """See `AskedFunctions.coefficient`."""
        return self._functions.coefficient(beta, kl, samples)
