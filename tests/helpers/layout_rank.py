"""One rank of several: trains a step under each of some layouts, and writes what came of it.

`python layout_rank.py FOLDER RANK`: FOLDER has `cases.json`, a list of cases. A rank without a place in one skips it.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from allocated import Allocated
from devices import DEVICE
from safetensors.torch import save_file
from tensor_bytes import tensor_bytes
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from training_helpers import CONFIGS
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from headrace.algorithms.kept_sets import KeptSets
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.models.loading import load_causal_lm, load_value_model
from headrace.models.logprobs import token_columns
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.models.parallel.shared_pass import Ranks, SharedPass
from headrace.models.skeleton import causal_lm_skeleton, value_model_skeleton
from headrace.models.values import token_values
from headrace.training import trainer as whole
from headrace.training.layouts import group
from headrace.training.layouts.ranks import Layout
from headrace.training.objective import PolicyOutputs
from headrace.training.pieces import Piece
from headrace.training.protocol import LossTerms
from headrace.training.replicas import At, Meeting
from headrace.training.saved import SavedTrainer
from headrace.training.shares import shares
from headrace.training.trainer import HFTrainer
from headrace.weights.addresses import GLOO, NCCL
from headrace.weights.manifest import build_manifest
from headrace.weights.parts import OpenSlot, Part, PartWriter, require_all
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

VOCAB = 61
LENGTHS = [9, 5, 17, 3, 12, 7, 1, 2]
AS_SGD = OptimizerConfig(lr=1e4, betas=(0.5, 0.9), eps=1e4, weight_decay=1e-6)
"""AdamW divides by sqrt(v) + eps: with eps far above all gradients a step is lr / eps times their momentum."""
COLUMNS = ("logprob", "entropy", "whole_entropy", "kept_mass", "first_choice")
SECONDS = 120.0
MOST = 20
IN_PAIRS = 12
"""Tokens of a micro-batch of two stages: a call has more than two, so that schedules differ."""


def rows(*, kept: bool, routed: bool = False, begin_alike: bool = True) -> list[PackRow]:
    """Some begin alike, and share the computation of that; one has no token to train, and one no more than one.
    `routed`: in each of two layers to two of the first three experts, so that the fourth has no token."""
    rng = np.random.default_rng(0)
    found = []
    for place, length in enumerate(LENGTHS):
        tokens = rng.integers(0, VOCAB, length)
        if begin_alike and place % 2 and length > 4:
            tokens[:4] = found[-1].tokens[:4]
        mask = rng.random(length) < (0.0 if length == 3 else 0.7)
        sets = _sets(rng, tokens, mask) if kept else None
        temperatures = np.where(mask, rng.uniform(0.7, 1.4, length), 1.0).astype(np.float32)
        found.append(PackRow(tokens, mask, {"weights": rng.normal(size=length)}, sets, temperatures))
        if routed:
            told = rng.permuted(np.tile(np.arange(3, dtype=np.uint8), (length, 2, 1)), axis=2)[:, :, :2]
            found[-1] = replace(found[-1], experts=told)
    return found


def _sets(rng: np.random.Generator, tokens: np.ndarray, mask: np.ndarray) -> KeptSets:
    """Of most tokens of the mask: the token, and up to 9 others."""
    ids = []
    for token, trained in zip(tokens, mask, strict=True):
        others = rng.choice(VOCAB, rng.integers(1, 10), replace=False) if trained and rng.random() < 0.8 else []
        ids.append(sorted({int(token), *map(int, others)}) if len(others) else [])
    counts = np.array([len(each) for each in ids], np.int32)
    return KeptSets.of(np.array([one for each in ids for one in each], np.int32), counts, VOCAB)


def loss(outputs: Tensor, micro: MicroBatch) -> LossTerms:
    """Of log-probs and entropies; the rest has no gradient, and is told."""
    weights = micro.columns["weights"] * micro.mask
    numerator = -(weights * (outputs[:, 0] + 0.3 * outputs[:, 1])).sum()
    stats = {name: (outputs[:, place].detach() * micro.mask).sum() for place, name in enumerate(COLUMNS)}
    maxima = {"length": float(max(micro.lengths))}
    return LossTerms(numerator, micro.mask.sum(), stats, maxima)


def loss_in_place(outputs: Tensor, micro: MicroBatch) -> LossTerms:
    """The same, of one that changes what it is given: by powers of two, so that no bit differs."""
    outputs *= 2.0
    outputs *= 0.5
    return loss(outputs, micro)


def viewed(lm: PackedLM, micro: MicroBatch) -> Tensor:
    """What `loss` is given, as a view."""
    return PolicyOutputs(COLUMNS, 1.0)(lm, micro)[:, :]


def in_pieces(lm: PackedLM, micro: MicroBatch) -> Tensor:
    """What `loss` is given, of two tokens at a time."""
    return token_columns(lm, micro, COLUMNS, max_logits=2 * VOCAB)


def value_loss(values: Tensor, micro: MicroBatch) -> LossTerms:
    """Half the squared distance to `weights`."""
    numerator = (0.5 * micro.mask * (values - micro.columns["weights"]) ** 2).sum()
    return LossTerms(numerator, micro.mask.sum(), {"values": values.detach().sum()}, {"length": max(micro.lengths)})


def made(case: dict[str, Any]) -> PreTrainedModel:
    """`values`: of a classifier of tokens into one class."""
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[case["model"]])
    if "layers" in case:
        config = type(config)(**{**config.to_dict(), "num_hidden_layers": case["layers"], "layer_types": None})
    config.vocab_size = VOCAB
    if not case.get("values"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(DEVICE)
    config.num_labels = 1
    model = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    torch.nn.init.constant_(model.score.bias, 0.3)
    return model.to(DEVICE)


def trainer(case: dict[str, Any], layout: Layout, folder: Path) -> HFTrainer:
    """`folder`: to put a model into whose weights are to be read there, where the case says that they are."""
    model, source, values = made(case), None, case.get("values", False)
    outputs = viewed if case.get("in_place") else in_pieces if case.get("pieces") else PolicyOutputs(COLUMNS, 1.0)
    if case.get("read"):
        model.save_pretrained(folder)
        found = (value_model_skeleton if values else causal_lm_skeleton)(folder, DEVICE)
        assert found is not None, case
        model, source = found
    # Norms are written out for models that are not split, as that of `shares` is.
    with mock.patch.object(whole, "use_fast_norms") if case.get("shares") else nullcontext():
        return HFTrainer(
            model,
            config=TrainerConfig(
                optimizer=AS_SGD.model_copy(update={"offload": case.get("offload", False)}),
                max_grad_norm=case.get("clip", 1e6),
                max_tokens_per_microbatch=MOST if layout.pp != 2 else IN_PAIRS,
            ),
            loss=value_loss if values else loss_in_place if case.get("in_place") else loss,
            total_steps=10,
            dtype=getattr(torch, case.get("dtype", "float32")),
            gradient_checkpointing=case.get("checkpointing", False),
            outputs=token_values if values else outputs,
            layout=layout,
            source=source,
        )


def step(trained: HFTrainer, given: list[PackRow], layout: Layout, rank: int) -> dict[str, Any]:
    """One over all rows, in micro-batches of at most `MOST` tokens, or through a pipeline of about twice as many."""
    parts = shares([len(row) for row in given], layout.dp, MOST * (1 if layout.pp == 1 else 2))
    own = parts[layout.place(rank).dp]
    mates = [parts[layout.place(each).dp] for each in layout.members(layout.within(rank)[0])]
    for place in range(max(map(len, mates))):
        if place < len(own):
            trained.accumulate(pack([given[each] for each in own[place]]))
        elif layout.joint:
            trained.idle(trains=True)
    return asdict(trained.step())


def require_own_alone(saved: SavedTrainer, copied: int, path: Path) -> None:
    """What is saved, and written now, takes no more memory than this rank's part, and one tensor of it."""
    own = [each.tensor.nbytes for each in (*saved.state.values(), *(Piece.of_whole(one) for one in saved.rng.values()))]
    assert copied <= sum(own), (copied, sum(own))
    with Allocated() as allocated:
        saved.write(path)
    assert allocated.peak <= max(own), (allocated.peak, max(own))


def require_part_alone(trained: HFTrainer, peak: int, folder: Path, load: Any) -> None:
    """A rank read what it has, as it is in the files, bit for bit, and never had more than that and a tensor."""
    state = trained._weights.state().values()
    assert peak <= sum(piece.tensor.nbytes for piece in state) + max(4 * prod(piece.whole) for piece in state), peak
    whole = dict(load(folder, dtype=torch.float32, device=DEVICE).named_parameters())
    for name, tensor in trained.tensors():
        assert torch.equal(tensor, whole.pop(name)), name
    assert not whole


def gradients(trained: HFTrainer, *, joint: bool) -> dict[str, Tensor]:
    """What the first step of `AS_SGD` was made by, clipped, whole and by name: its first moments, which are half of it.
    Ranks that have the same part of one have the same bits of it."""
    pieces = {
        name.removeprefix("exp_avg."): replace(piece, tensor=2 * piece.tensor.cpu())
        for name, piece in trained._weights.state().items()
        if name.startswith("exp_avg.")
    }
    flat = torch.zeros(sum(prod(piece.whole) for piece in pieces.values()))
    sizes = [prod(piece.whole) for piece in pieces.values()]
    found = {
        name: part.view(piece.whole) for (name, piece), part in zip(pieces.items(), flat.split(sizes), strict=True)
    }
    for name, piece in pieces.items():
        if piece.is_first:
            found[name][piece.box] = piece.tensor
    if joint:
        dist.all_reduce(flat)
    assert all(torch.equal(found[name][piece.box], piece.tensor) for name, piece in pieces.items())
    return found


@contextmanager
def watched_pipeline(layout: Layout, rank: int) -> Iterator[list[dict[str, Any]]]:
    """Of each pass through a pipeline that trains: which schedule it was, how many micro-batches, and of how many of
    them at most this rank had what their passes back need."""
    calls: list[dict[str, Any]] = []
    run, pass_on = PipelineScheduleSingle.step, PipelineStage.forward_one_chunk

    def stepped(schedule: Any, *args: Any, **more: Any) -> Any:
        if not torch.is_grad_enabled():
            return run(schedule, *args, **more)
        calls.append({"by": type(schedule).__name__, "chunks": schedule._n_microbatches, "held": 0})
        return run(schedule, *args, **more)

    def passed(stage: Any, *args: Any, **more: Any) -> Any:
        found = pass_on(stage, *args, **more)
        if torch.is_grad_enabled():
            calls[-1]["held"] = max(calls[-1]["held"], len(stage.fwd_cache))
        return found

    with (
        mock.patch.object(PipelineScheduleSingle, "step", stepped),
        mock.patch.object(PipelineStage, "forward_one_chunk", passed),
    ):
        yield calls
    stage = layout.place(rank).pp
    for call in calls:
        one_by_one = call["by"] == "Schedule1F1B"
        assert call["held"] == (min(layout.pp - stage, call["chunks"]) if one_by_one else call["chunks"]), call


def require_waits(seconds: float) -> None:
    """Of every group of this process."""
    groups = [group for group in dist.distributed_c10d._world.pg_map if isinstance(group, dist.ProcessGroup)]
    waits = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
    assert set(waits) == {timedelta(seconds=seconds)}, waits


class SharesWithItself(group.RankGroup):
    """One rank, whose passes go the way of ranks that share them: where there is one device."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        mesh = init_device_mesh(DEVICE.type, (1, 1, 1), mesh_dim_names=("stages", "shards", "tensor"))
        self.tensor = mesh["tensor"]

    def shared_pass(self) -> SharedPass:
        one = Ranks(dist.group.WORLD, 0, 1)
        return SharedPass(one, one)


def run(folder: Path, case: dict[str, Any], rank: int) -> None:
    """A step, from another case's checkpoint if it says so; where it saves one, that and another step."""
    layout = Layout(**case["layout"])
    into = folder / case["name"]
    into.mkdir(exist_ok=True)
    trained, given = (
        trainer(case, layout, into / f"model-{rank}"),
        rows(kept=case.get("kept", False), routed=case.get("routed", False)),
    )
    copy, inner = layout.within(rank)
    if layout.joint:
        kind = SharesWithItself if case.get("shares") else group.RankGroup
        with (
            mock.patch.object(group, "RankGroup", kind),
            Allocated() if case.get("read") else nullcontext() as allocated,
        ):
            trained.join(inner, _meeting(into / f"port{copy}", inner), SECONDS)
        if case.get("read"):
            load = load_value_model if case.get("values") else load_causal_lm
            assert allocated is not None
            require_part_alone(trained, allocated.peak, into / f"model-{rank}", load)
    if layout.model_replicas > 1:
        trained.pair(copy, _meeting(into / "port", rank), SECONDS)
    trained.keep_reference()
    if "loads" in case:
        trained.load(folder / case["loads"] / "saved")
    of_begin = trained.outputs(pack(given)).tolist() if case.get("values") else None
    if not layout.joint and layout.size == 1:
        save_file({name: tensor.clone() for name, tensor in trained.tensors()}, into / "begun.safetensors")
    with watched_pipeline(layout.of_replica, inner) as calls:
        report = step(trained, given, layout, rank)
    of_step = gradients(trained, joint=layout.joint)
    if inner == 0:
        save_file(of_step, into / f"gradients-{copy}.safetensors")
    if layout.pp > 1:  # by turns: what stages receive into is given back
        awake = tensor_bytes()
        trained.sleep()
        assert tensor_bytes() < awake
        trained.wake()
    scored = _scores(trained, given, of_begin)
    if case.get("saves"):
        with Allocated() as allocated:
            saved = trained.saved(copies=True) if copy == 0 else None
        step(trained, given, layout, rank)  # what was copied is written beside it, or behind it
        if saved is not None:
            require_own_alone(saved, allocated.peak, into / "saved")
    tensors = {name: tensor.clone() for name, tensor in trained.tensors()}
    if layout.joint and copy == 0:
        publish_by_parts(trained, tensors, into / "slots", rank)
    if rank == 0:
        (into / "report.json").write_text(json.dumps({**report, **scored, "pipeline": calls}))
        save_file(tensors, into / "weights.safetensors")
    if trained._ranks is not None:
        require_waits(SECONDS)
        trained._ranks.close()
        _clear_sharding_prop_cache()  # it knows a mesh by its ranks and names, and the groups of this one are gone


def publish_by_parts(trained: HFTrainer, tensors: dict[str, Tensor], folder: Path, rank: int) -> None:
    """Each rank writes what it has; what comes is, to the last bit, what is gathered to one, and none wrote it all."""
    publisher, told = ShmPublisher(folder), [None, None]
    manifest = build_manifest(Version(0, 1), trained.outlines(), checksums=False)
    if rank == 0:
        folder.mkdir()
        told = [publisher.address, publisher.begin(manifest).generation]
    dist.broadcast_object_list(told)
    parts = [Part(name, piece.begin, piece.tensor) for name, piece in trained.pieces()]
    written = torch.tensor(PartWriter().write(OpenSlot(*told), parts))
    whole = sum(entry.size for entry in manifest.entries)
    assert int(written) < whole or dist.get_world_size() == 1
    dist.all_reduce(written)
    require_all(manifest, int(written))
    if rank == 0:
        publisher.end(manifest, None)
        told_of, received = ShmReceiver(publisher.address).receive()
        assert [entry.name for entry in told_of.entries] == [*tensors]
        assert all(received[name].view(torch.uint8).equal(tensor.view(torch.uint8)) for name, tensor in tensors.items())
        shutil.rmtree(folder)


def _scores(trained: HFTrainer, given: list[PackRow], begun_with: list[float] | None) -> dict[str, Any]:
    """Of all rows by all ranks: log-probs now, and under the weights of the beginning. Of a model that began with these
    values, values."""
    whole = pack(given)
    if begun_with is not None:
        return {"now": trained.outputs(whole).tolist(), "begun": begun_with}
    now, begun = trained.logprobs(whole), trained.reference_logprobs(whole)
    return {"now": now.tolist(), "begun": begun.tolist()}


def _meeting(port: Path, rank: int) -> Meeting | At:
    if rank == 0:
        meeting = Meeting(SECONDS)
        making = port.with_name(f"{port.name}.new")
        making.write_text(json.dumps(meeting.at))
        making.rename(port)
        return meeting
    end = time.monotonic() + SECONDS
    while not port.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    host, number = json.loads(port.read_text())
    return host, number


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("error", message=".* returned a view tensor")  # which a loss may not change
    before = [os.environ.get(name) for name in (GLOO, NCCL)]
    for case in json.loads((folder / "cases.json").read_text()):
        if rank < Layout(**case["layout"]).size:
            run(folder, case, rank)
    assert [os.environ.get(name) for name in (GLOO, NCCL)] == before


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # gloo has threads that the interpreter's end may come before
