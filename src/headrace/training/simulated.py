"""Models that compute nothing: a trainer whose state tells what it was trained on, and one that only scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.models.packing import MicroBatch
from headrace.models.simulated import Words, identities, logprobs_of, mixed
from headrace.runtime.workers import WorkerLost
from headrace.store.media.files import Files
from headrace.training.protocol import CheckpointError, Outputs, StepReport, Written
from headrace.weights.plane import ALL, Manifest

Charge = Callable[[float], None]
"""The call that asks takes so many seconds longer."""
Watch = Callable[[str, object], None]
"""Told what a trainer does: a word, and what of."""

_FILE = "simulated.json"
_NAME = "state"
_CONTENT, _ORDER, _TALLY, _PASSES, _STEPS = range(5)
"""Places in the state. All sums are modulo 2^64."""
_REFERENCE_GAP = 0.01
"""What a reference's log-probs are lower by."""


@dataclass(frozen=True, slots=True)
class TrainerCosts:
    """What a trainer takes, in seconds."""

    train_s: float = 2e-5
    """Forward and backward, of a token."""
    score_s: float = 6e-6
    """Forward alone."""
    step_s: float = 0.2
    """Of an optimiser step."""
    copy_s: float = 0.1
    """Of what is to be saved."""
    save_s: float = 1.0
    """To write it."""
    sleep_s: float = 0.1
    """To give memory back, or to have it again."""


@dataclass(frozen=True, slots=True)
class TrainedState:
    """What was trained, in five numbers."""

    content: int
    """Of the steps in their order: which samples, with which masks and advantages, made each; whatever the order of
    samples within a step."""
    order: int
    """The same, with that order, and how they were cut into micro-batches."""
    tally: int
    """Sum over all passes of the samples' `identities`: one that was trained twice or never shows."""
    passes: int
    """Of samples."""
    steps: int


class SavedState:
    """Implements `headrace.training.protocol.Saved`."""

    def __init__(self, state: NDArray[np.uint64], files: Files, write: Callable[[], None] = lambda: None) -> None:
        """`write`: called before it is written."""
        self._state = state
        self._files = files
        self._write = write

    def write(self, path: Path) -> Written:
        self._write()
        _save(self._files, path, self._state)
        return Written(self._state.nbytes, self._state.nbytes)


class SimulatedTrainer:
    """Implements `headrace.training.protocol.PolicyTrainer`. Equal micro-batches in an equal order give equal
    weights, which are its state (`TrainedState`)."""

    def __init__(
        self,
        files: Files,
        charge: Charge,
        costs: TrainerCosts = TrainerCosts(),
        *,
        lr: float = 1e-6,
        watch: Watch = lambda word, what: None,
    ) -> None:
        self._files = files
        self._charge = charge
        self._costs = costs
        self._lr = lr
        self._watch = watch
        self._state = np.zeros(5, np.uint64)
        self._reference = self._state.copy()
        self._sums = _Sums()
        self._lost: WorkerLost | None = None
        self._sleeps = False

    @property
    def state(self) -> TrainedState:
        return TrainedState(*(int(word) for word in self._state))

    @property
    def step_count(self) -> int:
        return int(self._state[_STEPS])

    def renew(self) -> None:
        """As it was made, after it was lost too."""
        self._lost, self._sleeps = None, False
        self._state = np.zeros(5, np.uint64)
        self._reference = self._state.copy()
        self._sums = _Sums()

    def accumulate(self, micro: MicroBatch) -> Mapping[str, Tensor]:
        self._check_lives()
        self._charge(micro.num_tokens * self._costs.train_s)
        self._tell("pass", micro.num_samples)
        self._sums.add(micro)
        return {}

    def step(self) -> StepReport:
        self._check_lives()
        sums, self._sums = self._sums, _Sums()
        self._charge(self._costs.step_s)
        if sums.trained:
            self._state += np.array([0, 0, sums.tally, sums.passes, 1], np.uint64)
            for place, word in ((_CONTENT, sums.content), (_ORDER, sums.order)):
                self._state[place] = mixed(self._state[place : place + 1] + mixed(np.array([word], np.uint64)))[0]
        self._tell("step", (sums.trained, sums.passes, int(sums.tally)))
        return StepReport(
            loss=0.0,
            grad_norm=1.0 if sums.trained else 0.0,
            lr=self._lr,
            skipped=not sums.trained,
            denominator=float(sums.trained),
            stats=dict(sums.stats),
            maxima={},
            forwarded_tokens=sums.forwarded,
            trained_tokens=sums.trained,
            padding_tokens=0,
        )

    def sleep(self) -> None:
        self._check_lives()
        self._charge(self._costs.sleep_s)
        self._tell("sleep", None)
        self._sleeps = True

    def wake(self) -> None:
        if self._sleeps:
            self._sleeps = False
            self._charge(self._costs.sleep_s)

    def rate(self) -> float:
        return 0.0

    def discard(self) -> None:
        if not self._sleeps:
            self._check_lives()
        self._sums = _Sums()

    def logprobs(self, micro: MicroBatch) -> Tensor:
        self._check_lives()
        self._charge(micro.num_tokens * self._costs.score_s)
        return _logprobs(micro)

    def outputs(self, micro: MicroBatch, of: Outputs | None = None) -> Tensor:
        """Values, of a critic: with `of`, [N, 2], also of the state after each sample."""
        values = self.logprobs(micro)
        return values if of is None else torch.stack([values, values], dim=1)

    def keep_reference(self) -> None:
        self._check_lives()
        self._reference = self._state.copy()

    def reference_logprobs(self, micro: MicroBatch) -> Tensor:
        return self.logprobs(micro) - _REFERENCE_GAP * micro.mask

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        self._check_lives()
        yield _NAME, _tensor(self._state)

    def saved(self, *, copies: bool) -> SavedState:
        self._check_lives()
        self._charge(self._costs.copy_s if copies else 0.0)
        return SavedState(self._state.copy(), self._files, self._write)

    def save(self, path: Path) -> None:
        self.saved(copies=False).write(path)

    def _write(self) -> None:
        """Something of a checkpoint is written: who dies as it copies dies while it writes as well."""
        self._check_lives(asleep=True)
        self._charge(self._costs.save_s)
        self._tell("write", None)

    def load(self, path: Path) -> None:
        self._check_lives()
        self._state = _load(self._files, path)
        self.discard()

    def begin_from(self, path: Path, *, masters: bool, optimizer: bool) -> None:
        if masters:
            self.load(path)

    def export(self, path: Path) -> Written:
        self._check_lives()
        _save(self._files, path, self._state)
        return Written(self._state.nbytes, self._state.nbytes)

    def _tell(self, word: str, what: object) -> None:
        try:
            self._watch(word, what)
        except WorkerLost as lost:
            self._lost = lost
            raise

    def _check_lives(self, *, asleep: bool = False) -> None:
        """Raises what it was lost with. `asleep`: whether it may sleep."""
        if self._lost is not None:
            raise WorkerLost(self._lost.rank, self._lost.reason, worker=self._lost.worker)
        assert asleep or not self._sleeps, "it is asked while it sleeps"


class SimulatedScorer:
    """Implements `headrace.training.protocol.FrozenModel`."""

    def __init__(
        self,
        files: Files,
        charge: Charge,
        costs: TrainerCosts = TrainerCosts(),
        *,
        follows: bool = False,
    ) -> None:
        """`follows`: it takes the policy's versions, and its log-probs are the policy's."""
        self._files = files
        self._charge = charge
        self._costs = costs
        self._gap = 0.0 if follows else _REFERENCE_GAP
        self._state = np.zeros(5, np.uint64)

    def logprobs(self, micro: MicroBatch) -> Tensor:
        self._charge(micro.num_tokens * self._costs.score_s)
        return _logprobs(micro) - self._gap * micro.mask

    def require_fits(self, manifest: Manifest) -> None:
        pass

    share = ALL

    def of_any(self, fault: str | None) -> str | None:
        return fault

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        self._state = tensors[_NAME].numpy().view(np.uint64).copy()

    def saved(self, *, copies: bool) -> SavedState:
        return SavedState(self._state.copy(), self._files)

    def load(self, path: Path) -> None:
        self._state = _load(self._files, path)


class SimulatedReference:
    """The copy that a simulated trainer keeps of its own weights, as part of a checkpoint."""

    def __init__(self, trainer: SimulatedTrainer, files: Files) -> None:
        self._trainer = trainer
        self._files = files

    def saved(self, *, copies: bool) -> SavedState:
        return SavedState(self._trainer._reference.copy(), self._files)

    def load(self, path: Path) -> None:
        self._trainer._reference = _load(self._files, path)


class _Sums:
    """Of the micro-batches since the last step."""

    def __init__(self) -> None:
        self.content = self.order = self.tally = 0
        self.passes = self.trained = self.forwarded = 0
        self.stats: dict[str, float] = {}

    def add(self, micro: MicroBatch) -> None:
        found, mask = _identities(micro), micro.mask.numpy()
        of_token = mask.astype(np.uint64)
        if (advantages := micro.columns.get("advantages")) is not None:
            of_token += advantages.numpy().view(np.uint32).astype(np.uint64) << np.uint64(1)
        of_token += micro.positions.numpy().astype(np.uint64) << np.uint64(34)
        trained: Words = np.add.reduceat(mixed(of_token), micro.sequence_starts.numpy()[:-1])
        words = mixed(found + trained)
        self.content = (self.content + int(words.sum())) % 2**64
        numbered = mixed(words + np.arange(len(words)).astype(np.uint64))
        self.order = int(mixed(np.array([(self.order + int(numbered.sum())) % 2**64], np.uint64))[0])
        self.tally = (self.tally + int(found.sum())) % 2**64
        self.passes += micro.num_samples
        self.trained += int(mask.sum())
        self.forwarded += micro.num_tokens
        if "reference" in micro.columns:
            apart = (_logprobs(micro) - micro.columns["reference"])[micro.mask]
            self.stats["reference_kl"] = self.stats.get("reference_kl", 0.0) + float(apart.sum())


def _identities(micro: MicroBatch) -> Words:
    return identities(micro.tokens.numpy(), micro.positions.numpy(), micro.sequence_starts.numpy()[:-1])


def _logprobs(micro: MicroBatch) -> Tensor:
    return torch.from_numpy(logprobs_of(micro.tokens.numpy(), micro.positions.numpy())) * micro.mask


def _tensor(state: NDArray[np.uint64]) -> Tensor:
    return torch.from_numpy(state.copy().view(np.int64))


def _save(files: Files, path: Path, state: NDArray[np.uint64]) -> None:
    files.make_folder(path)
    files.write(path / _FILE, json.dumps([int(word) for word in state]).encode())


def _load(files: Files, path: Path) -> NDArray[np.uint64]:
    try:
        return np.array(json.loads(files.read(path / _FILE)), np.uint64)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / _FILE} cannot be read ({error}); resume from another checkpoint") from error
