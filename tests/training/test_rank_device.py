"""Which device a rank has, by how many this machine would have."""

from __future__ import annotations

import pytest
import torch

from headrace.config import ConfigError
from headrace.training.rank_device import numbered_device, rank_device

pytestmark = pytest.mark.cpu


def _sees(monkeypatch: pytest.MonkeyPatch, count: int, shown: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)


@pytest.mark.parametrize(
    ("count", "shown", "first", "number", "own"),
    [
        (0, None, "cpu", 3, "cpu"),
        (4, None, "cuda", 3, "cuda:3"),
        (4, None, "cuda:2", 1, "cuda:3"),
        (2, "4,7", "cuda", 1, "cuda:1"),
        (1, "6", "cuda", 2, "cuda"),
    ],
)
def test_a_rank_of_a_launcher_has_the_device_of_its_number(
    count: int, shown: str | None, first: str, number: int, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sees(monkeypatch, count, shown)
    assert numbered_device(first, number) == torch.device(own)


@pytest.mark.parametrize(
    ("count", "shown", "first", "number", "words"),
    [
        (
            1,
            None,
            "cuda",
            1,
            r"rank 1 of .*from cuda on, and there are 1 of them; begin at most 1 ranks there \(--nproc",
        ),
        (
            4,
            "1,2,3,5",
            "cuda:2",
            2,
            r"there are 4 of them, CUDA_VISIBLE_DEVICES being '1,2,3,5'; begin at most 2 ranks",
        ),
        (
            0,
            "",
            "cuda",
            0,
            r"there are 0 of them, CUDA_VISIBLE_DEVICES being ''; show it more devices, or set model\.dev",
        ),
    ],
)
def test_more_ranks_of_a_launcher_than_devices_are_refused(
    count: int, shown: str | None, first: str, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sees(monkeypatch, count, shown)
    with pytest.raises(ConfigError, match=words):
        numbered_device(first, number)


def test_what_a_cluster_gives_a_rank_is_all_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    _sees(monkeypatch, 1, "5")
    assert rank_device("cuda", 3) == torch.device("cuda")
    _sees(monkeypatch, 4, None)
    assert rank_device("cuda:1", 2) == torch.device("cuda:3")
