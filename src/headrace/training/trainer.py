"""The trainer on one device: a Hugging Face model, AdamW, and gradients that add up over packed micro-batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.config import ConfigError
from headrace.models.loading import save_pretrained_folder
from headrace.models.logprobs import token_logprobs
from headrace.models.norms import use_written_out_norms
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.data_parallel import DataParallel
from headrace.training.deterministic import deterministic, lacks_kernel
from headrace.training.dropout import remove_dropout
from headrace.training.layer_hooks import call_between_layers
from headrace.training.optimizer.adamw import FlatAdamW, OptimizerSettings
from headrace.training.optimizer.flat_buffers import FlatParameters
from headrace.training.optimizer.lr_schedule import ScheduleSettings, learning_rate
from headrace.training.protocol import Loss, Outputs, StepReport
from headrace.training.state import (
    TrainerRecord,
    read_record,
    read_some_state,
    read_state,
    restore_rng,
    rng_tensors,
    write_state,
)
from headrace.training.sums import BatchSums

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PROBE_LENGTHS = (5, 3)


class TrainerSettings(Protocol):
    """The settings read here; `TrainerConfig` and `SFTTrainerConfig` of `headrace.config` have them."""

    @property
    def optimizer(self) -> OptimizerSettings: ...

    @property
    def lr_schedule(self) -> ScheduleSettings: ...

    @property
    def max_grad_norm(self) -> float: ...


class HFTrainer:
    """Implements `headrace.training.protocol.Trainer`. On a CPU equal inputs give equal weights, bit for bit."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: TrainerSettings,
        loss: Loss,
        total_steps: int,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None,
        seed: int = 0,
        between_layers: Callable[[], None] | None = None,
        outputs: Outputs | None = None,
        in_order: bool = False,
    ) -> None:
        """Takes over `model`, which should be loaded in float32: the master weights come from it.

        `dtype`: of the forward and backward passes and of the tensors handed out. `temperature`: of sampling; the
        policy that is trained is softmax(logits / temperature). `seed`: of torch's generator, for architectures that
        draw from it when they train. `between_layers`: called often during a pass on a CPU, by the thread that
        computes. `tokenizer`: makes the one that `export` writes. `outputs`: what `loss` sees of the model; the
        log-probs of the tokens unless given. `in_order`: equal inputs give equal weights on a CUDA device too, bit for
        bit, which costs time, and for which nobody else may compute on it meanwhile.
        Raises ConfigError if the model cannot checkpoint gradients.
        """
        torch.manual_seed(seed)
        self._config = config
        self._loss = loss
        self._total_steps = total_steps
        self._temperature = temperature
        self._outputs = outputs or self._logprobs
        self._tokenizer = tokenizer
        self._model = model.eval()
        self._lm = PackedLM(model)
        remove_dropout(model)
        use_written_out_norms(model)
        if between_layers is not None and model.device.type == "cpu":
            call_between_layers(model, between_layers)
        if gradient_checkpointing:
            _checkpoint_gradients(model)
        self._flat = FlatParameters(model, dtype)
        self._optimizer = FlatAdamW(self._flat, config.optimizer)
        self._sums = BatchSums()
        self._parallel: DataParallel | None = None
        self._step_count = 0
        self._reference: Tensor | None = None
        self._in_order = in_order and model.device.type == "cuda" and self._can_sum_in_order()

    @property
    def step_count(self) -> int:
        return self._step_count

    @property
    def model(self) -> PreTrainedModel:
        """In compute dtype; its parameters are views."""
        return self._model

    def accumulate(self, micro: MicroBatch) -> Mapping[str, Tensor]:
        given, micro = micro, micro.to(self._lm.device)
        with deterministic() if self._in_order else nullcontext():
            terms = self._loss(self._outputs(self._lm, micro), micro)
            if terms.numerator.requires_grad:
                terms.numerator.backward()
        self._sums.add(terms, micro)
        return {name: column.to(given.tokens.device) for name, column in terms.columns.items()}

    def step(self) -> StepReport:
        sums, self._sums = self._sums, BatchSums()
        if self._parallel is not None:
            sums = self._parallel.merged(sums)
            self._parallel.add_up(self._flat.grads)
        denominator = float(sums.denominator)
        norm = float(torch.linalg.vector_norm(self._flat.grads))
        if self._parallel is not None:
            norm = self._parallel.of_first(norm)
        grad_norm = norm / denominator if denominator else 0.0
        lr = learning_rate(self._step_count, self._total_steps, self._config.optimizer.lr, self._config.lr_schedule)
        skipped = denominator == 0 or not math.isfinite(grad_norm)
        if not skipped:
            clip = min(1.0, self._config.max_grad_norm / (grad_norm + 1e-6))
            self._flat.grads.mul_(clip / denominator)
            self._optimizer.update(lr)
            self._flat.publish()
        self._flat.grads.zero_()
        self._step_count += denominator != 0
        return StepReport(
            loss=float(sums.numerator) / denominator if denominator else 0.0,
            grad_norm=grad_norm,
            lr=lr,
            skipped=skipped,
            denominator=denominator,
            stats={name: float(value) for name, value in sums.stats.items()},
            maxima={name: float(value) for name, value in sums.maxima.items()},
            forwarded_tokens=sums.forwarded_tokens,
            trained_tokens=int(sums.trained_tokens),
            padding_tokens=sums.padding_tokens,
        )

    def join(self, parallel: DataParallel) -> None:
        """Train together with others from now on, who have the same weights."""
        self._parallel = parallel

    def discard(self) -> None:
        self._sums = BatchSums()
        self._flat.grads.zero_()

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, *, temperature: float | None = None) -> Tensor:
        """`temperature`: that of sampling unless given."""
        at = self._temperature if temperature is None else temperature
        return token_logprobs(self._lm, micro.to(self._lm.device), at).to(micro.tokens.device)

    @torch.no_grad()
    def outputs(self, micro: MicroBatch, of: Outputs | None = None) -> Tensor:
        return (of or self._outputs)(self._lm, micro.to(self._lm.device)).to(micro.tokens.device)

    def keep_reference(self) -> None:
        """Keep a copy of the weights as they are now, for `reference_logprobs`."""
        self._reference = self._flat.compute.clone()

    @torch.no_grad()
    def reference_logprobs(self, micro: MicroBatch) -> Tensor:
        """As `logprobs`, under the weights of `keep_reference`."""
        assert self._reference is not None, "keep_reference was not called"
        with self._flat.holding(self._reference):
            return self.logprobs(micro)

    def reference_tensors(self) -> dict[str, Tensor]:
        """The weights of `keep_reference`, as views."""
        assert self._reference is not None, "keep_reference was not called"
        return dict(self._flat.named(self._reference))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self._flat.named(self._flat.compute)

    def save(self, path: Path) -> None:
        self.export(path / "model")
        record = TrainerRecord(step_count=self._step_count, updates=self._optimizer.updates)
        write_state(path, record, {**self._state(), **rng_tensors(self._lm.device)})

    def load(self, path: Path) -> None:
        record = read_record(path)
        state = self._state()
        rng = rng_tensors(self._lm.device)
        for name, saved in read_state(path, {**state, **rng}):
            (rng if name in rng else state)[name].copy_(saved)
        restore_rng(rng, self._lm.device)
        self._flat.publish()
        self._optimizer.updates = record.updates
        self._step_count = record.step_count
        self.discard()

    def begin_from(self, path: Path, *, masters: bool, optimizer: bool) -> None:
        """Take what another trainer of this model saved into `path`: its master weights, the moments of its optimiser.
        The learning rate's schedule is at its beginning. Raises CheckpointError."""
        parts = [*(["master"] if masters else []), *(["exp_avg", "exp_avg_sq"] if optimizer else [])]
        state = {name: view for name, view in self._state().items() if name.partition(".")[0] in parts}
        if optimizer:
            self._optimizer.updates = read_record(path).updates
        for name, saved in read_some_state(path, state):
            state[name].copy_(saved)
        self._flat.publish()

    def export(self, path: Path) -> None:
        save_pretrained_folder(self._model, None if self._tokenizer is None else self._tokenizer(), path)

    def _logprobs(self, lm: PackedLM, micro: MicroBatch) -> Tensor:
        return token_logprobs(lm, micro, self._temperature)

    def _can_sum_in_order(self) -> bool:
        """Tried on a few tokens; says so where it cannot."""
        rows = [PackRow(np.arange(length) + 1, np.arange(length) > 0) for length in _PROBE_LENGTHS]
        micro = pack(rows).to(self._lm.device)
        try:
            with deterministic():
                self._outputs(self._lm, micro).sum().backward()
        except RuntimeError as error:
            if not lacks_kernel(error):
                raise
            logger.warning(
                "weights are not equal bit for bit after a resume: %s", str(error).partition(", but you set")[0]
            )
            return False
        finally:
            self.discard()
        return True

    def _state(self) -> dict[str, Tensor]:
        """The tensors that a continuation needs, as views."""
        parts = {
            "master": self._flat.master,
            "exp_avg": self._optimizer.exp_avg,
            "exp_avg_sq": self._optimizer.exp_avg_sq,
        }
        return {f"{part}.{name}": view for part, flat in parts.items() for name, view in self._flat.named(flat)}


def _checkpoint_gradients(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"model.gradient_checkpointing is true, but {type(model).__name__} does not support it; set it to false"
        )
    # transformers checkpoints in train mode only.
    model.train()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
