"""Replicas of a model that are trained together: each has all of the weights, with their moments, and gradients of its
own rows, which are added up before a step.

A replica is a rank, or a group of ranks that cut the model up among them; then each rank speaks to those that have the
same part in the other replicas. Gradients are sums over tokens (`BatchSums`), so that which replica had which rows, and
how many, does not matter. What decides on a step is computed by the first replica for all: they stay equal bit for bit,
and any of them can heal another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from headrace.config import ConfigError
from headrace.runtime.ports import NoPort
from headrace.runtime.progress import mark
from headrace.training.merging import gathered, merged, plain
from headrace.training.sums import BatchSums
from headrace.weights.addresses import LOOPBACK, own_address
from headrace.weights.gloo import gloo_group, listening_store

_BUCKET = 1 << 24
"""Elements that travel at once: 64 MiB of float32."""


_ARRIVE_S = 25.0
"""In which all have to arrive, since all are told to at the same moment. (gloo itself would wait for one that has died
as long as for any operation.)"""


At = tuple[str, int]
"""Address and port."""


class Meeting:
    """Where ranks find each other: a store that the first of them opens, and keeps."""

    def __init__(self, seconds: float, host: str = LOOPBACK) -> None:
        """`seconds`: in which all have to be there. `host`: an address on the network that they speak over; the store
        listens at this machine's own address on it. Raises ConfigError."""
        try:
            own = own_address(host)
            self.store, port = listening_store(own, seconds)
        except NoPort as none:
            raise ConfigError(f"ranks of one model cannot meet: {none}") from none
        except OSError as error:
            raise ConfigError(
                f"ranks of one model cannot meet on the network of {host}: {error}; set weights.host to an address "
                "of the first rank's machine that the machines of all ranks reach (of sft, rm and dpo runtime.host)"
            ) from error
        self.at: At = own, port


class MeetingPlace:
    """What one rank knows of the next meeting: its own, if it has opened one; else the address that it is told."""

    def __init__(self) -> None:
        self._own: Meeting | None = None

    def open(self, seconds: float, host: str) -> At:
        """Open one, as the first of some ranks; returns where the others find it. See `Meeting`. Raises ConfigError."""
        self._own = Meeting(seconds, host)
        return self._own.at

    def of(self, at: At) -> Meeting | At:
        """The one at `at`: this rank's own is given out once."""
        own, self._own = self._own, None
        return at if own is None else own


def come_to(meeting: Meeting | At, seconds: float) -> tuple[TCPStore, str]:
    """Its store, and the address that this process speaks from. `meeting`: the first rank's own, or where it is. Raises
    RuntimeError, OSError."""
    if isinstance(meeting, Meeting):
        return meeting.store, meeting.at[0]
    host, port = meeting
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds)), own_address(host)


class Replicas:
    """One rank of one replica. Every method is a collective: all ranks that have this part call the same ones, in the
    same order.

    A rank that fails in one leaves (RuntimeError): its connections end, so that those who wait for it, or for another
    that waits for it, hear of it at once."""

    def __init__(self, replica: int, size: int, meeting: Meeting | At, seconds: float, *, part: int = 0) -> None:
        """Returns once all `size` are there. `part`: which one of the model this rank has. `seconds`: how long one
        waits for another. Raises RuntimeError."""
        self.replica = replica
        self.size = size
        self._store, own = come_to(meeting, seconds)
        of_part = PrefixStore(str(part), self._store)
        _arrive(of_part, replica, size, min(seconds, _ARRIVE_S))
        self._group: Any = gloo_group(of_part, replica, size, own, seconds)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each of these, float32, by its sum over all replicas: the same bits in each of them."""

        def summed(flat: Tensor) -> None:
            self._group.reduce(flat, 0).wait()
            self._group.broadcast(flat, 0).wait()

        with self._leaving():
            _in_buckets(tensors, summed)

    def of_first(self, value: float) -> float:
        """The first replica's `value`, in all."""
        told = torch.tensor([value], dtype=torch.float64)
        with self._leaving():
            self._group.broadcast(told, 0).wait()
        return float(told)

    def tell(self, tensors: Iterable[Tensor], replica: int) -> None:
        """Overwrite the tensors of all replicas with those of this one."""
        with self._leaving():
            _in_buckets(tensors, lambda flat: self._group.broadcast(flat, replica).wait())

    def merged(self, sums: BatchSums) -> BatchSums:
        """The sums over all replicas."""
        with self._leaving():
            return merged(gathered(self._group, self.size, plain(sums)))

    def leave(self) -> None:
        """End its connections; it takes part in nothing any more."""
        self._group = None

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        if self._group is None:
            raise RuntimeError("this rank has left the others")
        try:
            yield
        except BaseException:
            self.leave()
            raise


def _arrive(store: PrefixStore, replica: int, size: int, seconds: float) -> None:
    """Returns once all are there. Raises RuntimeError."""
    store.set(f"arrived/{replica}", "")
    store.wait([f"arrived/{each}" for each in range(size)], timedelta(seconds=seconds))


@torch.no_grad()
def _in_buckets(tensors: Iterable[Tensor], use: Callable[[Tensor], object]) -> None:
    """Call `use` on all elements of the tensors, flat, to be changed in place: large tensors in parts, small ones of
    one dtype several at once. In the host's memory: gloo adds up nothing on a device."""
    waiting: list[Tensor] = []

    def flush() -> None:
        if waiting:
            mark("chunk")
            flat = torch.cat([tensor.reshape(-1).cpu() for tensor in waiting])
            use(flat)
            for tensor, part in zip(waiting, flat.split([tensor.numel() for tensor in waiting]), strict=True):
                tensor.copy_(part.view(tensor.shape))
            waiting.clear()

    for tensor in tensors:
        if tensor.numel() >= _BUCKET and tensor.is_contiguous():
            for part in tensor.view(-1).split(_BUCKET):
                mark("chunk")
                here = part.cpu()
                use(here)
                if here is not part:
                    part.copy_(here)
            continue
        if waiting and (
            tensor.dtype is not waiting[0].dtype or sum(each.numel() for each in waiting) + tensor.numel() > _BUCKET
        ):
            flush()
        waiting.append(tensor)
    flush()
