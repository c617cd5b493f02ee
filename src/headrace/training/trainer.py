"""The trainer on one device: a Hugging Face model, AdamW, and gradients that add up over packed micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from headrace.models.captures import give_back
from headrace.models.fast_linear import use_fast_products
from headrace.models.file_weights import FileWeights
from headrace.models.logprobs import token_logprobs
from headrace.models.norms import use_fast_norms
from headrace.models.operations import TrainingOperations, matrix_rate
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.runtime.heap import own_heap
from headrace.runtime.progress import mark, working
from headrace.training.deterministic import can_sum_in_order, deterministic
from headrace.training.dropout import remove_dropout
from headrace.training.gradient_checkpointing import checkpoint_gradients
from headrace.training.layer_hooks import call_between_layers
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.model_files import ModelFiles, fill
from headrace.training.optimizer.adamw import OptimizerSettings
from headrace.training.optimizer.lr_schedule import ScheduleSettings, learning_rate
from headrace.training.optimizer.parked import Parking
from headrace.training.optimizer.trained_weights import TrainedWeights
from headrace.training.optimizer.whole_weights import WholeWeights
from headrace.training.own_reference import OwnReference
from headrace.training.pass_marks import PassMarks
from headrace.training.pieces import Piece
from headrace.training.protocol import Loss, LossTerms, Outputs, StepReport, Written
from headrace.training.remembered import Remembered
from headrace.training.replicas import At, Meeting, Replicas
from headrace.training.restoring import begin_from, restore, share
from headrace.training.rows.row_reader import Beside
from headrace.training.saved import SavedModel, SavedTrainer, SavedWeights, copied, weights_of
from headrace.training.state import TrainerRecord, rng_tensors
from headrace.training.sums import BatchSums
from headrace.weights.parts_apart import Peers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headrace.training.layouts.group import RankGroup
    from headrace.training.layouts.sharded_model import JointModel


class TrainerSettings(Protocol):
    """The settings read here; `TrainerConfig` and `SFTTrainerConfig` of `headrace.config` have them."""

    @property
    def optimizer(self) -> OptimizerSettings: ...

    @property
    def lr_schedule(self) -> ScheduleSettings: ...

    @property
    def max_grad_norm(self) -> float: ...

    @property
    def max_tokens_per_microbatch(self) -> int: ...


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
        layout: Layout = WHOLE,
        weights: type[WholeWeights] = WholeWeights,
        source: FileWeights | None = None,
        together: int = 1,
    ) -> None:
        """Takes over `model`, which should be loaded in float32: the master weights come from it.

        `dtype`: of the forward and backward passes and of the tensors handed out. `temperature`: of sampling; the
        policy that is trained is softmax(logits / temperature). `seed`: of torch's generator, for architectures that
        draw from it when they train. `between_layers`: called often during a pass on a CPU, by the thread that
        computes. `tokenizer`: makes the one that `export` writes. `outputs`: what `loss` sees of the model; the
        log-probs of the tokens unless given. `in_order`: equal inputs give equal weights on a CUDA device too, bit for
        bit, which costs time, and for which nobody else may compute on it meanwhile. `layout`: of ranks that train it
        together; of one that is `joint` nothing is to be asked before `join`, and of several replicas nothing before
        `pair`. `weights`: the class of those of other layouts, which has this model's under Hugging Face names.
        `source`: of a `model` without memory, for a layout that is `joint`: each rank reads its part there when they
        `join`. `together`: so many samples that follow each other are one thing to the loss, as the two of a pair: a
        pipeline cuts a micro-batch between such runs alone.
        Raises ConfigError if the model cannot checkpoint gradients.
        """
        torch.manual_seed(seed)
        self._config = config
        self._loss = loss
        self._total_steps = total_steps
        self._temperature = temperature
        self._outputs = outputs or self._logprobs
        self._model = model.eval()
        self._source = source
        with nullcontext() if source is None else source.lent(model):
            self._lm = PackedLM(model, None if source is None else source.device)
        remove_dropout(model)
        if layout.tp == 1:
            use_fast_norms(model, self._lm.device)
        use_fast_products(model, self._lm.device, dtype)
        self._remembered: Remembered | None = None
        self._marks = PassMarks(between_layers if self._lm.device.type == "cpu" else None)
        call_between_layers(model, self._marks.at_layer)
        if gradient_checkpointing:
            checkpoint_gradients(model)
        self._operations = TrainingOperations(model)
        self._dtype = dtype
        self._files = ModelFiles(model, dtype, tokenizer, joint=layout.joint)
        self._layout = layout.of_replica
        self._model_replicas = layout.model_replicas
        self._together = together
        self._replicas: Replicas | None = None
        self._ranks: RankGroup | None = None
        self._joint: JointModel | None = None
        self._whole: WholeWeights | None = None
        if not layout.joint:
            self._whole = weights(model, dtype, config.optimizer, offload=self._offloads)
            self._lm.gradient_sums = self._whole.gradient_sums
        self._trained: TrainedWeights | None = self._whole
        self._sums = BatchSums()
        self._summed: tuple[BatchSums, float] | None = None
        """Of all ranks, and the norm of their gradients, once they are added up."""
        self._step_count = 0
        self._reference = OwnReference()
        self._parking = Parking()
        self._sleeps = False
        self._forgets = False
        """Its gradients, once it is awake."""
        self._in_order = in_order and self._lm.device.type == "cuda" and self._sums_in_order()

    @property
    def _offloads(self) -> bool:
        """On a CPU there is nowhere to."""
        return self._config.optimizer.offload and self._lm.device.type != "cpu"

    @property
    def step_count(self) -> int:
        return self._step_count

    @property
    def model(self) -> PreTrainedModel:
        """In compute dtype; its parameters are views."""
        return self._model

    @property
    def routed(self) -> tuple[int, int, int] | None:
        """See `PackedLM.routed`."""
        return self._lm.routed

    def accumulate(self, micro: MicroBatch) -> Mapping[str, Tensor]:
        with self._at_work():
            return self._accumulated(micro)

    def _accumulated(self, micro: MicroBatch) -> Mapping[str, Tensor]:
        given, micro = micro, micro.to(self._lm.device)
        with deterministic() if self._in_order else nullcontext():
            passed = self._passed(micro) if self._joint is None else self._joint.train(self._outputs, self._loss, micro)
        for part, terms in passed:
            own = given if part is micro else part  # whose device need not be waited for
            self._sums.add(terms, part, self._operations.computed(self._lm, own))
        return {
            name: torch.cat([terms.columns[name] for _, terms in passed]).to(given.tokens.device)
            for name in (passed[0][1].columns if passed else ())
        }

    def _passed(self, micro: MicroBatch) -> list[tuple[MicroBatch, LossTerms]]:
        outputs = self._outputs(self._lm, micro)
        mark("microbatch")
        terms = self._loss(outputs, micro)
        if terms.numerator.requires_grad:
            terms.numerator.backward()
        return [(micro, terms)]

    def idle(self, *, trains: bool) -> None:
        """Take part in a pass over other ranks' rows; `trains`: there and back."""
        assert self._joint is not None, "its passes are its own"
        with self._at_work():
            if trains:
                self._joint.train(self._outputs, self._loss, None)
            else:
                self._joint.compute(self._outputs, None)

    def add_up(self) -> None:
        """The first half of a step, by all ranks: what they have of it. Until the other, which none needs the others
        for, nothing is changed that `discard` does not forget. Raises RuntimeError."""
        self._check_awake()
        sums, self._sums = self._sums, BatchSums()
        with working("chunk"):
            self._summed = self._weights.sum_up(sums)

    def step(self) -> StepReport:
        if self._summed is None:
            self.add_up()
        assert self._summed is not None
        (sums, norm), self._summed = self._summed, None
        denominator = float(sums.denominator)
        grad_norm = norm / denominator if denominator else 0.0
        lr = learning_rate(self._step_count, self._total_steps, self._config.optimizer.lr, self._config.lr_schedule)
        skipped = denominator == 0 or not math.isfinite(grad_norm)
        if not skipped:
            clip = min(1.0, self._config.max_grad_norm / (grad_norm + 1e-6))
            with working("chunk"):
                self._weights.update(clip / denominator, lr)
        self._weights.forget_gradients()
        if self._lm.device.type == "cpu":
            own_heap().give_back()
        self._step_count += denominator != 0
        return sums.report(grad_norm=grad_norm, lr=lr, skipped=skipped)

    def join(self, rank: int, meeting: Meeting | At, seconds: float) -> None:
        """Be this one of the ranks that cut the model up, from now on. `meeting`: the first one's own, or where it is.
        `seconds`: that a rank may be later than another. Raises RuntimeError, ConfigError."""
        # Most runs need none of this, and torch takes its time to import it.
        from headrace.training.layouts.group import RankGroup
        from headrace.training.layouts.sharded_model import joint_model
        from headrace.training.optimizer.sharded_weights import ShardedWeights

        self._files.prepare()
        ranks = self._ranks = RankGroup(self._layout, rank, meeting, seconds, self._lm.device)
        budget = self._config.max_tokens_per_microbatch * self._layout.cp
        source, self._source = self._source, None
        self._joint, outlines = joint_model(
            *(self._lm, ranks, self._dtype, budget),
            offload=self._offloads,
            source=source,
            together=self._together,
        )
        self._trained = ShardedWeights(self._model, outlines, self._dtype, self._config.optimizer, ranks)
        if source is not None:
            fill(self._trained, source)
        if self._reference.is_wanted:
            self.keep_reference()

    @property
    def peers(self) -> Peers | None:
        """With whom it cuts the model up."""
        return self._ranks

    @property
    def beside(self) -> Beside | None:
        """See `RankGroup.beside`."""
        return None if self._ranks is None else self._ranks.beside

    def pair(self, replica: int, meeting: Meeting | At, seconds: float, size: int | None = None) -> None:
        """Train together with the other replicas from now on, who have the same weights; those of before are left.
        `meeting`: of all ranks, as for `join`. `size`: how many take part, all unless given. Raises RuntimeError."""
        if self._replicas is not None:
            self._replicas.leave()
        part = 0 if self._ranks is None else self._ranks.rank
        self._replicas = Replicas(replica, size or self._model_replicas, meeting, seconds, part=part)
        self._weights.join(self._replicas)

    def heal(self, replica: int) -> None:
        """Have all the state of this replica in all of them: by all ranks, between steps. Raises RuntimeError."""
        weights, steps, beside, others = self._weights, self._step_count, self._reference.tensors, self._replicas
        assert others is not None, "there are no other replicas"
        self._step_count = share(weights, steps, beside, others, replica, self._lm.device)
        self.discard()

    def remember(self) -> None:
        """Keep what steps change, as it is, for `recall`: before the first of several on a batch."""
        if self._remembered is None:
            self._remembered = Remembered(self._weights)
        self._remembered.take(self._weights, self._step_count, self._lm.device)

    def recall(self) -> None:
        """Be as at the last `remember`, without gradients."""
        assert self._remembered is not None, "nothing was remembered"
        self._step_count = self._remembered.give(self._weights, self._lm.device)
        self.discard()

    def rate(self) -> float:
        return matrix_rate(self._lm.device, self._dtype)

    def discard(self) -> None:
        self._sums, self._summed = BatchSums(), None
        if self._sleeps:
            self._forgets = True
        else:
            self._weights.forget_gradients()

    def sleep(self) -> None:
        if self._sleeps:
            return
        weights, parking = self._weights, self._parking
        self._sleeps = True
        weights.sleep(gradients=self._sums.forwarded_tokens > 0)
        parking.park(self._reference.tensors)
        if self._joint is not None:
            self._joint.rest()
        give_back(self._lm.device)

    def wake(self) -> None:
        if not self._sleeps or self._trained is None:
            return
        self._trained.wake()
        self._parking.back()
        self._sleeps = False
        if self._forgets:
            self._forgets = False
            self.discard()

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch, *, temperature: float | None = None) -> Tensor:
        """`temperature`: that of sampling unless given."""
        at = self._temperature if temperature is None else temperature
        with self._at_work():
            return self._pass(partial(_logprobs_at, at), micro.to(self._lm.device)).to(micro.tokens.device)

    @torch.no_grad()
    def outputs(self, micro: MicroBatch, of: Outputs | None = None) -> Tensor:
        with self._at_work():
            return self._pass(of or self._outputs, micro.to(self._lm.device)).to(micro.tokens.device)

    def keep_reference(self) -> None:
        """Keep a copy of the weights as they are now, for `reference_logprobs`; before `join`, of those then."""
        self._reference.is_wanted = True
        if self._trained is not None:
            self._reference.keep(self._weights)

    @torch.no_grad()
    def reference_logprobs(self, micro: MicroBatch) -> Tensor:
        """As `logprobs`, under the weights of `keep_reference`."""
        with self._reference.in_place(self._weights):
            return self.logprobs(micro)

    @torch.no_grad()
    def saved_reference(self) -> SavedWeights:
        """The weights of `keep_reference`, as `saved`: always a copy."""
        return self._reference.saved(self._weights, self._dtype, leads=self.is_first)

    @torch.no_grad()
    def load_reference(self, path: Path) -> None:
        """What was written of `saved_reference`. Raises CheckpointError."""
        self._reference.load(path, self._weights)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self._weights.named()

    def outlines(self) -> Mapping[str, Tensor]:
        """Names, shapes and dtypes of `tensors`: without memory."""
        return self._weights.outlines()

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        """What this rank has of `tensors`, in float32: of ranks that have the same the first alone has it. Views."""
        for name, piece in weights_of(self._weights.state()).items():
            if piece.is_first and piece.tensor.numel():
                yield name, piece

    @torch.no_grad()
    def saved(self, *, copies: bool) -> SavedTrainer:
        state, device = self._weights.state(), self._lm.device
        copies = copies or self._reference.is_wanted  # whose passes have it change places with what would be written
        if copies:
            state = copied(state)
        ranks, rank = (1, 0) if self._ranks is None else (self._layout.size, self._ranks.rank)
        record = TrainerRecord(step_count=self._step_count, updates=self._weights.updates, parts=ranks)
        return SavedTrainer(record, state, rng_tensors(device), self._saved_model(state, copies=copies), rank)

    def save(self, path: Path) -> None:
        self.saved(copies=False).write(path)

    def load(self, path: Path) -> None:
        rank = 0 if self._ranks is None else self._ranks.rank
        self._step_count = restore(path, self._weights, rank, self._lm.device)
        self.discard()

    def begin_from(self, path: Path, *, masters: bool, optimizer: bool) -> None:
        """Take what another trainer of this model saved into `path`: its master weights, the moments of its optimiser.
        The learning rate's schedule is at its beginning. Raises CheckpointError."""
        begin_from(path, self._weights, masters=masters, optimizer=optimizer)

    def export(self, path: Path) -> Written:
        return self._saved_model(self._weights.state(), copies=False).write(path)

    def _saved_model(self, state: Mapping[str, Piece], *, copies: bool) -> SavedModel:
        return self._files.saved(state, partial(self.gathered, copies=copies), leads=self.is_first)

    @property
    def _weights(self) -> TrainedWeights:
        """To be used while it is awake."""
        self._check_awake()
        assert self._trained is not None, "the ranks did not come together"
        return self._trained

    @property
    def is_first(self) -> bool:
        """Of the ranks that train it; so is one alone."""
        return self._ranks is None or self._ranks.rank == 0

    def _check_awake(self) -> None:
        """Whoever computes with memory that was given back has the process end without a word."""
        if self._sleeps:
            raise RuntimeError("the trainer is asked while it sleeps; wake it first")

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """On a micro-batch."""
        self._check_awake()
        with self._marks.at_work():
            yield

    def _pass(self, outputs: Outputs, micro: MicroBatch) -> Tensor:
        return outputs(self._lm, micro) if self._joint is None else self._joint.compute(outputs, micro)

    def gathered(self, *, copies: bool = False) -> dict[str, Tensor]:
        """All weights, by Hugging Face name, in compute dtype, on the host: of the first rank; the others have none,
        and take part."""
        found = {}
        for name, tensor in self._weights.named():
            if self.is_first:
                found[name] = tensor.detach().to("cpu", copy=copies or self._ranks is not None)
        return found

    def _logprobs(self, lm: PackedLM, micro: MicroBatch) -> Tensor:
        return token_logprobs(lm, micro, self._temperature)

    def _sums_in_order(self) -> bool:
        try:
            return can_sum_in_order(partial(self._outputs, self._lm), self._lm.device)
        finally:
            if self._trained is None:  # the ranks have not come together
                self._model.zero_grad(set_to_none=True)
            else:
                self.discard()


def _logprobs_at(temperature: float, lm: PackedLM, micro: MicroBatch) -> Tensor:
    return token_logprobs(lm, micro, temperature)
