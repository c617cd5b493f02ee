"""Attention over a micro-batch whose tokens lie on several ranks: heads are exchanged (Ulysses), or keys and values go
round in a ring.

    python -m benchmarks.context_attention [--tokens 4096] [--rounds 5]

One layer's attention, forward, in float32, by processes of one thread over gloo: 16 heads of 32, 4 of keys and values,
of packed samples (64 to 512 tokens, some such that a run's end cuts them), and of one sample as long as all of them.
Ulysses is the trainer's own code (`headrace.models.parallel.shared_pass`). The ring is as Liu et al. have it
(arXiv:2310.01889): each rank has one run of tokens, and what arrives is merged by its log-sum-exp; blocks without a
pair of query and key of one sample are not computed, but pass. Of both: how far from what one process computes, bytes
that a rank sends for each of its tokens, what the rank with most pairs of query and key computes over the mean, and
seconds (sides in turn). And what torch's own `context_parallel` says to the same on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import save, spread
from headrace.models.attention import packed_attention
from headrace.models.length_batches import SegmentPlan
from headrace.models.parallel.shared_pass import Ranks, SharedPass

HEADS, KEY_HEADS, WIDTH = 16, 4, 32
SIZES = (2, 4)
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def lengths_of(kind: str, tokens: int) -> list[int]:
    if kind == "one long":
        return [tokens]
    rng, found = np.random.default_rng(0), list[int]()
    while (left := tokens - sum(found)) > 0:
        found.append(min(int(rng.integers(64, 513)), left))
    return found


def inputs(tokens: int) -> list[Tensor]:
    """Queries, keys and values, [1, heads, tokens, width]."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, tokens, WIDTH, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]


def attention(given: list[Tensor], plan: SegmentPlan) -> Tensor:
    """[tokens, heads, width]; where the plan is shared, by Ulysses."""
    query, key, value = given
    return packed_attention(torch.nn.Identity(), query, key, value, None, segments=plan)[0][0]


def ring(own: list[Tensor], lengths: list[int], rank: int, size: int) -> tuple[Tensor, int]:
    """[R, heads, width], and how many pairs of query and key were computed."""
    query, run = own[0], own[0].shape[2]
    block, came = torch.stack(own[1:]), torch.empty_like(torch.stack(own[1:]))
    ends = np.cumsum(lengths)
    out, mass = torch.zeros_like(query), torch.full(query.shape[:3], -torch.inf)
    pairs = 0
    for turn in range(size):
        if turn < size - 1:
            ways = (dist.P2POp(dist.isend, block, (rank + 1) % size), dist.P2POp(dist.irecv, came, (rank - 1) % size))
            waits = dist.batch_isend_irecv(list(ways))
        of = (rank - turn) % size
        for begin, end in zip(ends - lengths, ends, strict=True) if of <= rank else ():
            q = slice(*np.clip([begin - rank * run, end - rank * run], 0, run))
            k = slice(*np.clip([begin - of * run, end - of * run], 0, run))
            if q.start == q.stop or k.start == k.stop:
                continue
            pairs += (q.stop - q.start) * (k.stop - k.start) // (2 if of == rank else 1)
            keys, values = block[:, :, :, k].repeat_interleave(HEADS // KEY_HEADS, dim=2)
            found, told = _FLASH(query[:, :, q], keys, values, 0.0, of == rank)
            both = torch.logaddexp(mass[:, :, q], told)
            before, now = (mass[:, :, q] - both).exp()[..., None], (told - both).exp()[..., None]
            out[:, :, q], mass[:, :, q] = out[:, :, q] * before + found * now, both
        if turn < size - 1:
            for wait in waits:
                wait.wait()
            block, came = came, block
    return out[0].transpose(0, 1), pairs


def work(rank: int, size: int, folder: str, tokens: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{size}", rank=rank, world_size=size)
    shared = SharedPass(None, Ranks(dist.group.WORLD, rank, size))
    run, found = tokens // size, dict[str, Any]()
    itemsize, others = 4, (size - 1) / size
    with torch.no_grad():
        for kind in ("packed", "one long"):
            lengths, whole = lengths_of(kind, tokens), inputs(tokens)
            plan = SegmentPlan.of(lengths, torch.device("cpu"))
            alone = attention(whole, plan)
            own = [each[:, :, rank * run : (rank + 1) * run].contiguous() for each in whole]
            shared_plan = replace(plan, shared=shared)
            seconds: dict[str, list[float]] = {"ulysses": [], "ring": []}
            for _ in range(rounds + 1):
                for side, times in seconds.items():
                    dist.barrier()
                    began = time.perf_counter()
                    if side == "ulysses":
                        made, pairs = attention(own, shared_plan), 1
                    else:
                        made, pairs = ring(own, lengths, rank, size)
                    dist.barrier()
                    times.append(time.perf_counter() - began)
                    apart = torch.tensor([float((made - alone[rank * run : (rank + 1) * run]).abs().max())])
                    dist.all_reduce(apart, dist.ReduceOp.MAX)
                    every = [torch.zeros(1) for _ in range(size)]
                    dist.all_gather(every, torch.tensor([float(pairs)]))
                    found.setdefault(kind, {})[side] = {
                        "apart": float(apart),
                        "most_over_mean": float(max(every) * size / sum(every)),
                        "bytes_a_token": itemsize * WIDTH * _sent(side, size, others),
                        "seconds": spread(times[1:]) if len(times) > 1 else None,
                    }
    dist.destroy_process_group()
    if rank == 0:
        Path(folder, f"found-{size}").write_text(json.dumps(found))


def _sent(side: str, size: int, others: float) -> float:
    """Numbers of a head's width: all but its own share of queries, keys, values and outputs; keys and values of every
    rank but the next one's."""
    key_heads = max(KEY_HEADS, size)
    return others * (2 * HEADS + 2 * key_heads) if side == "ulysses" else (size - 1) * 2 * KEY_HEADS


def torchs_own(rank: int, folder: str) -> None:
    """What torch's ring says."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    dist.init_process_group("gloo", init_method=f"file://{folder}/own", rank=rank, world_size=2)
    whole, words = inputs(256), "it computes"
    query, key, value = whole
    try:
        with context_parallel(init_device_mesh("cpu", (2,)), buffers=whole, buffer_seq_dims=[2] * 3):
            F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    except Exception as error:
        words = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if rank == 0:
        Path(folder, "words").write_text(words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    results: dict[str, Any] = {"tokens": args.tokens, "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(torchs_own, (folder,), nprocs=2)
        results["torch_context_parallel"] = Path(folder, "words").read_text()
        for size in SIZES:
            torch.multiprocessing.spawn(work, (size, folder, args.tokens, args.rounds), nprocs=size)
            results[f"{size} ranks"] = json.loads(Path(folder, f"found-{size}").read_text())
    print(results)
    save("context_attention", results)


if __name__ == "__main__":
    main()
