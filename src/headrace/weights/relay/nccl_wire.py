"""Messages by NCCL, between processes that have a CUDA device each.

A bucket is copied from the host's memory to the device, and leaves there while the next is copied; where it comes it is
copied into the host's memory, where whoever takes versions from a relay reads it. What is short, headers above all,
goes by gloo: the end of a process is heard of there at once.

Whoever waits for a message does so until its deadline; then NCCL's communicators are aborted. The first message between
two processes makes one of these, in a call that has no deadline: who is left alone in it stands still, and is ended by
whoever asked for the journey (`calls.py`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

from headrace.weights.addresses import NCCL, speaking_from
from headrace.weights.relay.wire import TAG, GlooWire, Wait, wait_for

SHORT = 64 << 10
"""Bytes, up to which a message goes by gloo: NCCL's copies and kernels would take longer."""


class NcclFault(RuntimeError):
    """All of a group came together, and NCCL does not work between them."""


class NcclWire:
    def __init__(self, store: Store, rank: int, size: int, host: str, seconds: float, device: torch.device) -> None:
        """Once all are there. `device`: of this process alone. The others as `gloo_group` has them. Raises
        RuntimeError or OSError where they do not come together, and NcclFault."""
        self._device = device
        self._group: Any = None
        self._short = GlooWire(PrefixStore("short", store), rank, size, host, seconds)
        try:
            with speaking_from(host, NCCL):
                self._group = _nccl_group(PrefixStore("long", store), rank, size, seconds)
                self._meet(size, seconds)
        except BaseException as error:
            self.close()
            if isinstance(error, ImportError | RuntimeError | ValueError | OSError):
                raise NcclFault(f"NCCL on {device}: {error}") from error
            raise

    def send(self, part: Tensor, rank: int) -> Wait:
        """See `Wire.send`."""
        if len(part) <= SHORT:
            return self._short.send(part, rank)
        held = part.to(self._device)
        return _OnDevice(self._group.send([held], rank, TAG), held)

    def receive(self, part: Tensor, rank: int) -> Wait:
        """See `Wire.receive`."""
        if len(part) <= SHORT:
            return self._short.receive(part, rank)
        held = torch.empty_like(part, device=self._device)
        return _OnDevice(self._group.recv([held], rank, TAG), held, part)

    def close(self) -> None:
        """See `Wire.close`; messages on their way are given up."""
        self._short.close()
        group, self._group = self._group, None
        if group is not None:
            with suppress(RuntimeError):  # of a device that fails nothing more is wanted
                group.abort()

    def _meet(self, size: int, seconds: float) -> None:
        """All add up: what is wrong with NCCL here is known before a version leaves."""
        found = torch.ones(1, device=self._device)
        wait_for(self._group.allreduce([found]), seconds)
        if int(found) != size:
            raise RuntimeError(f"a sum over {size} processes is {int(found)}")


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """A message's bytes there, until it is done."""

    work: Any
    held: Tensor
    into: Tensor | None = None
    """Where they belong, if they come."""

    def __call__(self, seconds: float) -> None:
        """See `Wait`. What is late is aborted."""
        wait_for(self.work, seconds)
        if self.into is not None:
            self.into.copy_(self.held)


def _nccl_group(store: Store, rank: int, size: int, seconds: float) -> Any:
    """Raises ImportError, RuntimeError, OSError of an address that no interface has, and ValueError where this process
    sees no device."""
    from torch.distributed.distributed_c10d import ProcessGroupNCCL  # a torch without CUDA has none

    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # waits abort and raise, and no thread ends the process for them
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seconds)
    return ProcessGroupNCCL(store, rank, size, options)
