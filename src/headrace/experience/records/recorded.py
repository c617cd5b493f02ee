"""The rollouts that a run recorded, as groups to be trained on again.

Batches are as they were recorded: the same groups, in the same order. A token's version is one of the recorded run, and
means nothing beside the versions that are made now; what is kept is its *staleness*: the recorded batch minus the
version that sampled it. So versions are moved by what the batch's number has moved, and may so be negative.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate, groupby

import numpy as np

from headrace.config import ConfigError
from headrace.experience.prompts.dataset import IssuedPrompt, Prompt
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group, GroupKey, Sample
from headrace.store.recorded import Recorded, RecordedGroup


class RecordedRollouts:
    """A group's key is (pass over the record, place in it, 0). Only batches of which every group is there are used."""

    def __init__(
        self, recorded: Recorded, name: str, *, vocab_size: int, max_context: int, first: int | None = None
    ) -> None:
        """`name`: of the run, for messages. `first`: only so many whole batches, if given. Raises ConfigError if no
        batch is whole."""
        self._read = recorded.read
        self._name = name
        self._vocab_size = vocab_size
        self._max_context = max_context
        found = [(batch, tuple(groups)) for batch, groups in groupby(recorded.groups, key=lambda group: group.batch)]
        whole = [(batch, groups) for batch, groups in found if len(groups) == recorded.sizes[batch]]
        self.trained = sum(recorded.sizes.values())
        """Groups that the run was trained on."""
        self.left_out = sum(len(groups) for _, groups in found) - sum(len(groups) for _, groups in whole)
        """Groups that are there, of batches that are not whole."""
        if not whole:
            raise ConfigError(
                f"data.rollouts: the journal of {name} holds no whole batch of the {len(recorded.sizes)} that it "
                "committed; record one with record.journal=all, or with --rollouts-only"
            )
        whole = whole[:first]
        self._groups: tuple[RecordedGroup, ...] = tuple(group for _, groups in whole for group in groups)
        self.sizes = tuple(len(groups) for _, groups in whole)
        """Groups of each batch of one pass."""
        self._starts = tuple(accumulate(self.sizes, initial=0))

    def __len__(self) -> int:
        """Groups of one pass."""
        return len(self._groups)

    @property
    def batches(self) -> int:
        """Of one pass."""
        return len(self.sizes)

    @property
    def digest(self) -> str:
        """Of which groups make which batch."""
        return hashlib.sha256(repr([(group.key, group.batch) for group in self._groups]).encode()).hexdigest()

    def batch_of(self, key: GroupKey) -> int:
        """That it is trained in now, counted from 0."""
        return key.epoch * self.batches + bisect_right(self._starts, key.position) - 1

    def before(self, batch: int) -> int:
        """Groups of the batches before it."""
        passes, place = divmod(batch, self.batches)
        return passes * len(self) + self._starts[place]

    def prompt_id(self, position: int) -> str:
        return self._groups[position].prompt_id

    def group(self, key: GroupKey) -> Group:
        """With its rewards, log-probs, kept sets and ages as they were recorded. Blocking. Raises RunDamaged,
        CodecError; ConfigError if it cannot be of the model that is trained."""
        recorded = self._groups[key.position]
        group = decode_group(self._read(recorded.offset))
        batch = self.batch_of(key)
        moved = batch - recorded.batch
        samples = tuple(self._moved(sample, key, moved) for sample in group.samples)
        return Group(key, group.prompt_id, group.start_version + moved, batch, samples)

    def _moved(self, sample: Sample, key: GroupKey, by: int) -> Sample:
        if len(sample) > self._max_context:
            raise ConfigError(
                f"data.rollouts: a sample of {self._name} has {len(sample)} tokens, and the context holds "
                f"{self._max_context}; train a model with room for it, or raise engine.max_context"
            )
        if len(sample) and int(sample.tokens.max()) >= self._vocab_size:
            raise ConfigError(
                f"data.rollouts: a sample of {self._name} has token {int(sample.tokens.max())}, and the model's ids "
                f"go from 0 to {self._vocab_size - 1}: it was recorded with another tokenizer"
            )
        versions = np.where(sample.loss_mask, sample.versions + np.int32(by), sample.versions).astype(np.int32)
        return replace(sample, group=key, versions=versions)


class RecordedSource:
    """Hands out the groups in their order, pass after pass, as `PromptSource` does prompts."""

    def __init__(
        self, rollouts: RecordedRollouts, *, epochs: int | None, frontier: tuple[int, int] | None = None
    ) -> None:
        """Begin at `frontier`, the first (pass, place) never handed out; `epochs` None never ends."""
        self._rollouts = rollouts
        self._epochs = epochs
        self._epoch, self._position = frontier or (0, 0)

    def next(self) -> IssuedPrompt | None:
        if self._position == len(self._rollouts):
            self._epoch, self._position = self._epoch + 1, 0
        if self._epochs is not None and self._epoch >= self._epochs:
            return None
        key = GroupKey(self._epoch, self._position, 0)
        self._position += 1
        return IssuedPrompt(key, self.prompt(key.epoch, key.position), key.position)

    def prompt(self, epoch: int, position: int) -> Prompt:
        """Its id alone: nothing is asked again."""
        return Prompt(self._rollouts.prompt_id(position), "", {})

    def returned(self, key: GroupKey) -> bool:
        """False: nothing recorded is drawn again."""
        return False
