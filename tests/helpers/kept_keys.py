"""Runs with `async.swap: keep`, and whether each of their tokens is of the version that it is said to be of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Sample
from headrace.store import RunReader

SETTINGS = {
    "async__swap": "keep",
    "record__journal": "all",
    "checkpoint__every": 1,
    "checkpoint__keep": 100,
    "rollout__sampling__max_new_tokens": 48,
}
"""Each version's checkpoint is kept. Samples are long, so that swaps come in their midst also on a busy machine."""
_GAP = 1e-4
"""Of a log-prob to that of the model which sampled the token, in float32."""
_FEWEST = 5
"""Samples of several versions."""


@dataclass(frozen=True)
class _Trained:
    batch: int
    sample: Sample
    gaps: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """By version, of each token that the policy chose: how far its log-prob is from what the version's checkpoint gives
    it."""

    @property
    def versions(self) -> NDArray[np.int32]:
        """Of the tokens that the policy chose."""
        return self.sample.versions[self.sample.loss_mask]


def require_versions_agree(run: Path, initial: Path) -> None:
    """Of a run with `SETTINGS` and float32, `initial` being the folder of version 0. The batches have counted what the
    journal says of the tokens. Those up to a sample's first swap have the log-probs of their version's checkpoint. What
    goes on then has keys and values of the weights before: no checkpoint tells its log-probs, and these weights did not
    sample it."""
    found: list[_Trained] = []
    with RunReader(run) as reader:
        told = {row.record["batch"]: row.record["staleness"] for row in reader.metrics.read("batch")}
        for group in reader.journalled():
            if group.state == "trained":
                found += [_Trained(group.batch, sample) for sample in decode_group(group.payload).samples]
    for batch, counted in told.items():
        stale = np.concatenate([batch - each.versions for each in found if each.batch == batch])
        assert Counter(stale.tolist()) == {int(number): count for number, count in counted.items()}
    for version in range(len(told)):
        model = run / "checkpoints" / f"step_{version}" / "model" if version else initial
        _compare(version, model, [each for each in found if version in each.versions])

    gaps, crossed, as_before, anew = [], 0, 0, True
    for each in found:
        versions = each.versions
        assert (np.diff(versions) >= 0).all(), "its versions go back"
        old = each.gaps[versions[0]]
        gaps.append(old[versions == versions[0]].max())
        if versions[0] < versions[-1]:
            crossing = np.flatnonzero(versions > versions[0])[0]
            new = versions[crossing]
            crossed += 1
            as_before += bool(old[crossing] < _GAP)
            anew &= bool(each.gaps[new][versions == new].max() < _GAP)
    assert max(gaps) < _GAP
    assert crossed >= _FEWEST, f"{crossed} samples have tokens of several versions"
    assert as_before <= crossed // _FEWEST, f"{as_before} of {crossed} first tokens after a swap are of the old weights"
    assert not anew, "keys and values of before were computed anew"


@torch.no_grad()
def _compare(version: int, folder: Path, those: Sequence[_Trained]) -> None:
    """Note how far the log-probs of those are from the model's in the folder."""
    if not those:
        return
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [torch.from_numpy(each.sample.tokens).long() for each in those]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # causal: what is behind a token is nothing to it
    logits = model(tokens).logits[:, :-1]
    told = torch.log_softmax(logits, -1).gather(2, tokens[:, 1:, None])[..., 0].numpy()
    for each, row in zip(those, told, strict=True):
        chosen = np.flatnonzero(each.sample.loss_mask)
        each.gaps[version] = np.abs(row[chosen - 1] - each.sample.logprobs[chosen])
