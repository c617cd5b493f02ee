"""The process group of ranks that cut a model up, within one rank: its meshes, and what all of them tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store
from torch.distributed.device_mesh import DeviceMesh

from headrace.config.values.hosts import is_loopback
from headrace.models.parallel.shared_pass import Ranks, SharedPass
from headrace.training.layouts.ranks import Layout, Place, readers
from headrace.training.merging import gathered, merged, plain
from headrace.training.replicas import At, Meeting, come_to
from headrace.training.sums import BatchSums
from headrace.weights.addresses import GLOO, NCCL, speaking_from
from headrace.weights.devices import device_name
from headrace.weights.seen import Seen, seen_here

_STAGES, _SHARDS, _TENSOR = "stages", "shards", "tensor"
_COPIES, _EXPERTS = "copies", "experts"


@dataclass(frozen=True, slots=True)
class RanksBeside:
    """Implements `Beside`."""

    group: dist.ProcessGroup
    reader: int
    reads: bool

    def of_reader(self, tensor: Tensor) -> None:
        """See `Beside.of_reader`."""
        dist.broadcast(tensor, self.reader, group=self.group)


class RankGroup:
    """Everything here is done by all ranks, in one order."""

    def __init__(self, layout: Layout, rank: int, meeting: Meeting | At, seconds: float, device: torch.device) -> None:
        """Once all are there. `layout`: of one replica. `meeting`, `seconds`: see `Replicas`; of all groups that
        are made here. `device`: of this rank alone, if it is not the CPU. torch's default group of this process is
        theirs. Raises RuntimeError."""
        assert layout.model_replicas == 1, "it is of one replica"
        self.layout = layout
        self.rank = rank
        self.stage = layout.place(rank).pp
        self._wait = timedelta(seconds=seconds)
        self._device = device
        store, self._address = come_to(meeting, seconds)
        with speaking_from(self._address, GLOO, *[] if is_loopback(self._address) else [NCCL]):
            self._make_groups(store, device)

    def _make_groups(self, store: Store, device: torch.device) -> None:
        """All but those of experts."""
        layout, backend = self.layout, "gloo"
        if device.type == "cuda":  # what ranks tell each other in plain data goes through the host
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=layout.size, timeout=self._wait)
        if device.type == "cuda" and not is_loopback(self._address):
            dist.all_reduce(torch.zeros(1, device=device))  # from here on NCCL keeps to the interface
        every = torch.arange(layout.size).view(layout.pp, layout.dp * layout.cp, layout.tp)
        # A mesh that makes its groups itself has torch's wait in them, half an hour.
        groups = [self._along(every, dim) for dim in range(3)]
        mesh = DeviceMesh.from_group(groups, device.type, every, mesh_dim_names=(_STAGES, _SHARDS, _TENSOR))
        self.shards: DeviceMesh = mesh[_SHARDS]
        """Of data and context: among which parameters are cut up."""
        self.tensor: DeviceMesh | None = mesh[_TENSOR] if layout.tp > 1 else None
        self.stages: dist.ProcessGroup = mesh[_STAGES].get_group()
        """Of a pipeline, in their order: who have the same part of the data, of the tokens and of each matrix."""
        self._context = self._own(self._along_context()) if layout.cp > 1 else None
        self._ends = self._own(self._at_the_ends()) if layout.pp > 1 else None
        self.beside = self._reading_together() if layout.size > layout.dp else None
        """Those on this rank's machine that are given the same rows, of which one reads them; None: it is alone."""

    def sharing_experts(self) -> DeviceMesh | None:
        """[copies, ranks that share the experts of a layer], of the ranks of `shards` and `tensor`: tensor ranks share
        them, and so do as many of data and context as the layout says. None where each has all. Made anew."""
        layout = self.layout
        copies, sharing = self.shards.size() // layout.ep, layout.ep * layout.tp
        if sharing == 1:
            return None
        every = torch.arange(layout.size).view(layout.pp, copies, sharing)
        with speaking_from(self._address, GLOO):
            groups = [self.stages, self._along(every, 1), self._along(every, 2)]
        mesh = DeviceMesh.from_group(groups, self._device.type, every, mesh_dim_names=(_STAGES, _COPIES, _EXPERTS))
        return mesh[_COPIES, _EXPERTS]

    def shared_pass(self) -> SharedPass | None:
        """With whom this rank shares its passes."""
        place = self.layout.place(self.rank)
        tensor = None if self.tensor is None else Ranks(self.tensor.get_group(), place.tp, self.layout.tp)
        context = None if self._context is None else Ranks(self._context, place.cp, self.layout.cp)
        return SharedPass(tensor, context) if tensor or context else None

    def sees(self) -> list[Seen]:
        """See `Peers`."""
        here = asdict(seen_here(device_name(self._device)))
        return [Seen(**told) for told in gathered(dist.group.WORLD, self.layout.size, here)]

    def send(self, tensor: Tensor, rank: int) -> None:
        """See `Peers`: in the host's memory."""
        dist.send(tensor, rank)

    def receive(self, tensor: Tensor, rank: int) -> None:
        """See `Peers`: in the host's memory."""
        dist.recv(tensor, rank)

    def merged(self, sums: BatchSums) -> BatchSums:
        """Those of all parts of the data."""
        told = self.told(plain(sums))
        return merged([told[rank] for rank in self.layout.heads])

    def told(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """What each rank tells, in their order."""
        return gathered(dist.group.WORLD, self.layout.size, own)

    def total(self, value: float) -> float:
        """The sum of all ranks' values: the same bits in all."""
        found = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(found)
        dist.broadcast(found, 0)
        return float(found)

    def most(self, count: int) -> int:
        """The largest that any part of the data has; what one has is the same in all of its ranks."""
        if self.layout.dp == 1:
            return count
        found = torch.tensor([count])
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.shards.get_group())
        return int(found)

    def from_stage(self, stage: int, tensor: Tensor) -> Tensor:
        """That of this stage, which the others give room for."""
        if self.layout.pp > 1:
            dist.broadcast(tensor, group=self.stages, group_src=stage)
        return tensor

    def add_ends(self, tensor: Tensor) -> None:
        """Give the first and the last stage the sum of theirs: the same bits. By those two."""
        dist.all_reduce(tensor, group=self._ends)

    def close(self) -> None:
        """torch's default group is nobody's again."""
        dist.destroy_process_group()

    def _along(self, every: Tensor, dim: int) -> dist.ProcessGroup:
        """Of the ranks that differ from this one along `dim` alone; `every`: all, as a mesh. torch's default group, if
        those are all."""
        everybody = every.shape[dim] == self.layout.size
        own = dist.group.WORLD if everybody else self._own(every.movedim(dim, -1).flatten(0, -2).tolist())
        assert own is not None, "each rank is in one of them"
        return own

    def _reading_together(self) -> RanksBeside | None:
        found = readers(self.layout, self.sees())
        same = [[rank for rank, own in enumerate(found) if own == reader] for reader in sorted(set(found))]
        group = self._own((ranks for ranks in same if len(ranks) > 1), "gloo")
        return None if group is None else RanksBeside(group, found[self.rank], found[self.rank] == self.rank)

    def _own(self, groups: Iterable[list[int]], backend: str | None = None) -> dist.ProcessGroup | None:
        """That of `groups` which this rank is in. All are made by all ranks. `backend`: the default group's unless
        given."""
        own = None
        for ranks in groups:
            group = dist.new_group(ranks, timeout=self._wait, backend=backend)
            own = group if self.rank in ranks else own
        return own

    def _along_context(self) -> Iterator[list[int]]:
        layout = self.layout
        for pp, dp, tp in product(range(layout.pp), range(layout.dp), range(layout.tp)):
            yield [layout.rank(Place(dp, pp, cp, tp)) for cp in range(layout.cp)]

    def _at_the_ends(self) -> Iterator[list[int]]:
        layout = self.layout
        for dp, cp, tp in product(range(layout.dp), range(layout.cp), range(layout.tp)):
            yield [layout.rank(Place(dp, pp, cp, tp)) for pp in (0, layout.pp - 1)]
