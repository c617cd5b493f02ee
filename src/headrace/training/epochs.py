"""Which samples of a batch each of its optimiser steps is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Epochs:
    """How often a whole batch is gone over, and in how many steps."""

    count: int = 1
    updates: int = 1
    """Optimiser steps in an epoch, each on its share of the samples."""
    seed: int = 0

    @property
    def steps(self) -> int:
        """Optimiser steps on a batch."""
        return self.count * self.updates

    def shares(self, samples: int, batch: int, epoch: int) -> list[NDArray[np.intp]]:
        """The samples, 0 to `samples` - 1, of each step of an epoch: ascending within a step, each in one, and shares
        of equal size to within one. Of fewer samples than steps each is a step.

        A pure function of the arguments and the seed: which samples go together is drawn anew for each epoch.
        """
        # Sorted raw words: numpy promises that a bit generator's stream never changes, but not so for
        # `Generator.permutation`. The counter's highest word keeps epochs, each with a stream of its own, apart.
        key = np.array([self.seed, batch], dtype=np.uint64)
        counter = np.array([0, 0, 0, epoch + 1], dtype=np.uint64)
        order = np.argsort(np.random.Philox(key=key, counter=counter).random_raw(samples), kind="stable")
        return [np.sort(share) for share in np.array_split(order, min(self.updates, samples))]
