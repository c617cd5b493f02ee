"""AdamW in the host's memory, for weights that are trained on a device (ZeRO-Offload, Ren et al., arXiv:2101.06840)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from headrace.runtime.progress import mark
from headrace.training.optimizer.adamw import FusedAdamW, OptimizerSettings, Trained
from headrace.training.optimizer.flat_buffers import FlatParameters

_CHUNK = 1 << 25
"""Numbers that travel at once: 128 MiB of gradients."""


class OffloadedAdamW:
    """Of flat parameters whose masters are in the host's memory, as the moments are. In chunks: while one is computed
    there, the next one's gradients come from the device, and the last one's weights go there."""

    def __init__(self, flat: FlatParameters, settings: OptimizerSettings, *, chunk: int = _CHUNK) -> None:
        self.exp_avg = torch.zeros_like(flat.master)
        self.exp_avg_sq = torch.zeros_like(flat.master)
        self._flat = flat
        self._chunks = [*_chunks(flat, chunk)]
        self._ways = [_Way(flat, min(chunk, len(flat.master))) for _ in range(2)]
        self._steps: list[FusedAdamW] = []
        self._parameters: list[nn.Parameter] = []
        for part, decays in self._chunks:
            parameter = nn.Parameter(flat.master[part])
            self._parameters.append(parameter)
            moments = self.exp_avg[part], self.exp_avg_sq[part]
            self._steps.append(FusedAdamW([Trained(parameter, *moments, decays)], settings))

    @property
    def updates(self) -> int:
        """See `FusedAdamW.updates`."""
        return self._steps[0].updates

    @updates.setter
    def updates(self, count: int) -> None:
        for step in self._steps:
            step.updates = count

    def update(self, lr: float) -> None:
        """One update from the gradients; the compute weights are those behind it."""
        self._ways[0].fetch(self._chunks[0][0])
        for place, (part, _) in enumerate(self._chunks):
            mark("chunk")
            way = self._ways[place % 2]
            if place + 1 < len(self._chunks):
                self._ways[(place + 1) % 2].fetch(self._chunks[place + 1][0])
            parameter = self._parameters[place]
            parameter.grad = way.fetched(part)
            self._steps[place].update(lr)
            parameter.grad = None
            way.send(part)
        for way in self._ways:
            way.finish()


class _Way:
    """Between a device and the host, for one chunk at a time: a stream of its own, and memory that it copies to and
    from."""

    def __init__(self, flat: FlatParameters, size: int) -> None:
        self._flat = flat
        device = flat.grads.device
        on_cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if on_cuda else None
        self._grads = torch.empty(size, dtype=torch.float32, pin_memory=on_cuda)
        self._weights = torch.empty(size, dtype=flat.compute.dtype, pin_memory=on_cuda)

    def fetch(self, part: slice) -> None:
        """Begin to copy its gradients."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._flat.grads.device))
        with self._on_stream():
            self._grads[: part.stop - part.start].copy_(self._flat.grads[part], non_blocking=True)

    def fetched(self, part: slice) -> Tensor:
        """Once they are there."""
        if self._stream is not None:
            self._stream.synchronize()
        return self._grads[: part.stop - part.start]

    def send(self, part: slice) -> None:
        """Begin to copy its weights, which are in the master."""
        own = self._weights[: part.stop - part.start]
        own.copy_(self._flat.master[part])
        with self._on_stream():
            self._flat.compute[part].copy_(own, non_blocking=True)

    def finish(self) -> None:
        """Whoever computes from now on, does so behind what was begun."""
        if self._stream is not None:
            torch.cuda.current_stream(self._flat.grads.device).wait_stream(self._stream)

    def _on_stream(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _chunks(flat: FlatParameters, size: int) -> Iterator[tuple[slice, bool]]:
    """And whether they decay."""
    for begin, end, decays in ((0, flat.decayed, True), (flat.decayed, len(flat.master), False)):
        for at in range(begin, end, size):
            yield slice(at, min(at + size, end)), decays
