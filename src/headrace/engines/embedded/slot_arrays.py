"""What a decode step needs to know of each running sequence, as arrays indexed by slot."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.engines.embedded.noise import stream_of
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.sampler import SamplingRows

_NO_TOKEN = -1


class DecodeBatch:
    """Host arrays [slots] and their twins on the device; on a CPU the two are the same memory.

    Only slots whose sequence changed are written, and only then anything is uploaded: during a run the device's
    `tokens` and `positions` move on by themselves.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._members: list[Sequence | None] = [None] * slots
        self._tokens = np.zeros(slots, dtype=np.int64)
        self._positions = np.zeros(slots, dtype=np.int64)
        self._temperature = np.ones(slots, dtype=np.float32)
        self._greedy = np.zeros(slots, dtype=np.bool_)
        self._truncated = np.zeros(slots, dtype=np.bool_)
        self._top_k = np.full(slots, vocab_size, dtype=np.int64)
        self._top_p = np.ones(slots, dtype=np.float32)
        self._streams = np.zeros(slots, dtype=np.int64)
        self._stops = np.full((slots, 1), _NO_TOKEN, dtype=np.int64)
        self._host = {
            "tokens": self._tokens,
            "positions": self._positions,
            "temperature": self._temperature,
            "greedy": self._greedy,
            "truncated": self._truncated,
            "top_k": self._top_k,
            "top_p": self._top_p,
            "streams": self._streams,
        }
        self._device = {name: torch.from_numpy(array).to(device) for name, array in self._host.items()}
        self._on_cpu = device.type == "cpu"
        self._rows: SamplingRows | None = None
        self.size = 0
        self.wants_kept = False
        """Whether the kept sets of any sequence are asked for."""

    @property
    def tokens(self) -> torch.Tensor:
        """Int64 [size]: what the next step feeds."""
        return self._device["tokens"][: self.size]

    @property
    def positions(self) -> torch.Tensor:
        """Int64 [size]: the place of those tokens in their sequences."""
        return self._device["positions"][: self.size]

    @property
    def rows(self) -> SamplingRows:
        if self._rows is None:
            self._rows = self._sampling_rows()
        return self._rows

    def load(self, running: list[Sequence]) -> None:
        """Make slot i hold `running[i]`."""
        changed = len(running) != self.size
        self._members[len(running) :] = [None] * (len(self._members) - len(running))
        self.size = len(running)
        for slot, sequence in enumerate(running):
            if self._members[slot] is not sequence:
                self._write(slot, sequence)
                changed = True
        if changed:
            self._rows = None
            self.wants_kept = any(sequence.wants_kept for sequence in running)
            if not self._on_cpu:
                for slot, sequence in enumerate(running):
                    self._tokens[slot] = sequence.last_token
                    self._positions[slot] = sequence.length - 1
                for name, array in self._host.items():
                    self._device[name].copy_(torch.from_numpy(array))

    def advance(self, tokens: torch.Tensor) -> None:
        """`tokens` [size] were sampled: they are what the next step feeds."""
        self.tokens.copy_(tokens)
        self.positions.add_(1)

    def stops(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these tokens, [..., size] in slot order, end their sequence."""
        hits: NDArray[np.bool_] = (tokens[..., None] == self._stops[: self.size]).any(axis=-1)
        return hits

    def _write(self, slot: int, sequence: Sequence) -> None:
        sampling = sequence.request.sampling
        greedy = sampling.temperature == 0
        self._members[slot] = sequence
        self._tokens[slot] = sequence.last_token
        self._positions[slot] = sequence.length - 1
        self._temperature[slot] = 1.0 if greedy else sampling.temperature
        self._greedy[slot] = greedy
        self._truncated[slot] = sampling.truncates
        self._top_k[slot] = min(sampling.top_k, self.vocab_size) or self.vocab_size
        self._top_p[slot] = sampling.top_p
        self._streams[slot] = stream_of(int(sequence.request.noise_key))
        stops = sampling.stop_token_ids
        if len(stops) > self._stops.shape[1]:
            wider = np.full((len(self._members), len(stops)), _NO_TOKEN, dtype=np.int64)
            wider[:, : self._stops.shape[1]] = self._stops
            self._stops = wider
        self._stops[slot] = _NO_TOKEN
        self._stops[slot, : len(stops)] = stops

    def _sampling_rows(self) -> SamplingRows:
        n = self.size
        truncated = self._truncated[:n]
        return SamplingRows(
            temperature=self._device["temperature"][:n],
            greedy=self._device["greedy"][:n],
            truncated=self._device["truncated"][:n],
            top_k=self._device["top_k"][:n],
            top_p=self._device["top_p"][:n],
            streams=self._device["streams"][:n],
            some_greedy=bool(self._greedy[:n].any()),
            some_scaled=bool((self._temperature[:n] != 1).any()),
            some_truncated=bool(truncated.any()),
            some_whole=not truncated.all(),
            most_kept=int(self._top_k[:n].max(where=truncated, initial=1)),
        )
