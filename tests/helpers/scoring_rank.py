"""One rank of several that score: under each of some layouts rewards, or log-probs of two versions of the weights.

`python scoring_rank.py FOLDER RANK`: FOLDER has `cases.json`, a list of cases. A rank without a place in one skips it.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from layout_rank import MOST, SECONDS, VOCAB, _meeting, rows
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from training_helpers import CONFIGS
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from headrace.models.loading import load_causal_lm, load_reward_model
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.models.skeleton import causal_lm_skeleton, reward_model_skeleton
from headrace.training.frozen import FrozenRewardModel, FrozenScorer
from headrace.training.layouts.ranks import Layout
from headrace.training.shares import shares
from headrace.training.taking import taken
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightError
from headrace.weights.receiving import receiver_at
from headrace.weights.version import Version

Scorer = FrozenScorer | FrozenRewardModel


def write_model(folder: Path, case: dict[str, Any], seed: int) -> None:
    torch.manual_seed(seed)
    config = copy.deepcopy(CONFIGS[case["model"]])
    config.vocab_size, kind = VOCAB, AutoModelForCausalLM
    if case.get("reward"):
        config.num_labels, config.pad_token_id, kind = 1, None, AutoModelForSequenceClassification
    kind.from_config(config, dtype=torch.float32).save_pretrained(folder)


def scorer(case: dict[str, Any], folder: Path, layout: Layout) -> Scorer:
    dtype, device, reward = getattr(torch, case.get("dtype", "float32")), torch.device("cpu"), case.get("reward")
    found = None
    if layout.joint:
        found = (reward_model_skeleton if reward else causal_lm_skeleton)(folder, device, dtype)
        assert (found is None) == (case["model"] == "gpt2" and bool(reward)), case
    model, source = found or (
        (load_reward_model if reward else load_causal_lm)(folder, dtype=dtype, device=device),
        None,
    )
    budget = MOST if layout.pp == 1 else MOST // 2
    kind = FrozenRewardModel if reward else FrozenScorer
    return kind(model, layout=layout, max_tokens=budget, source=source)


def passes(model: Scorer, given: list[PackRow], layout: Layout, rank: int) -> dict[int, list[float]]:
    """Of each row that this rank answers for what came of it: log-probs, or its score."""
    parts = shares([len(row) for row in given], layout.dp, MOST * (1 if layout.pp == 1 else 2))
    own = parts[layout.place(rank).dp]
    mates = [parts[layout.place(each).dp] for each in layout.members(layout.within(rank)[0])]
    found: dict[int, list[float]] = {}
    for number in range(max(map(len, mates))):
        if number >= len(own):
            if layout.joint:
                model.idle()
            continue
        micro = pack([given[place] for place in own[number]])
        found |= dict(zip(own[number], _of_samples(model, micro), strict=True))
    return found if rank in layout.heads else {}


def _of_samples(model: Scorer, micro: MicroBatch) -> list[list[float]]:
    if isinstance(model, FrozenRewardModel):
        return [[float(score)] for score in model.scores(micro)]
    return [part.tolist() for part in model.logprobs(micro).split(micro.lengths)]


def run(folder: Path, case: dict[str, Any], rank: int) -> None:
    layout = Layout(**case["layout"])
    into = folder / case["name"]
    into.mkdir(exist_ok=True)
    own = into / f"model-{rank}"
    newer = into / f"newer-{rank}"
    for seed, version in enumerate((own, newer)):  # of ranks that have joined the first alone writes
        write_model(version, case, seed)
    model = scorer(case, own, layout)
    replica, inner = layout.within(rank)
    if layout.joint:
        model.join(inner, _meeting(into / f"port{replica}", inner), SECONDS)
    weights = model._shared.weights
    given = rows(kept=case.get("kept", False), routed=case.get("routed", False))
    if "only" in case:
        given = given[: case["only"]]
    found: dict[str, Any] = {"first": passes(model, given, layout, rank)}
    if isinstance(model, FrozenScorer) and case.get("breaks"):
        found["error"] = said_of_take(model, newer, rank)
    elif isinstance(model, FrozenScorer):
        publisher = DiskPublisher(into / f"published-{rank}")  # the same for all, who look at a share of it each
        tensors = load_causal_lm(newer, dtype=torch.float32, device="cpu").named_parameters()
        publisher.publish(Version(0, 1), tensors)
        taken(model, publisher.receiver())
        found["second"] = passes(model, given, layout, rank)
    size = sum(one.tensor.nbytes for one in weights.values())
    (into / f"found-{rank}.json").write_text(json.dumps({**found, "bytes": size}))
    if model._shared._ranks is not None:
        model._shared._ranks.close()
        _clear_sharding_prop_cache()


def said_of_take(model: FrozenScorer, newer: Path, rank: int) -> str:
    """Where a version is published for the first rank alone."""
    publisher = MemoryPublisher()
    if rank == 0:
        tensors = load_causal_lm(newer, dtype=torch.float32, device="cpu").named_parameters()
        publisher.publish(Version(0, 1), tensors)
    try:
        taken(model, receiver_at(publisher.transport, publisher.address))
    except WeightError as error:
        return str(error)
    return ""


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    for case in json.loads((folder / "cases.json").read_text()):
        if rank < Layout(**case["layout"]).size:
            run(folder, case, rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # gloo has threads that the interpreter's end may come before
