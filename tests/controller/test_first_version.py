"""Version 0 for servers that are attached to, where nobody trains."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import make_job, make_model

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.building.first_version import plane_of, publish_first
from headrace.controller.planning.plan import Plan, make_plan
from headrace.models.loading import load_causal_lm
from headrace.training.frozen import FrozenScorer
from headrace.training.taking import scored
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.version import INITIAL

HERE = {"engine__kind": "vllm", "engine__url": "http://127.0.0.1:1"}
BEYOND = {"engine__kind": "vllm", "engine__url": "http://10.0.0.7:1", "engine__token_env": "T"}


def planned(tmp_path: Path, **changes: Any) -> Plan:
    return make_plan(load_config(TrainConfig, make_job(tmp_path / "job", **changes), []))


@pytest.mark.parametrize("transport", ["shm", "disk", "gloo"])
@pytest.mark.parametrize("in_run", [False, True], ids=["alone", "in a run"])
def test_it_is_the_model_with_a_swap_check_and_goes_with_who_asked(
    tmp_path: Path, transport: str, in_run: bool
) -> None:
    plan = planned(tmp_path, weights__transport=transport, **HERE)
    model = load_causal_lm(plan.weights, dtype=torch.float32, device="cpu")
    folder = tmp_path / "run" if in_run else None
    if folder is not None:
        folder.mkdir()
    for _ in range(2):  # a run that is resumed publishes it again
        with plane_of(plan.config, folder) as plane:
            publish_first(plan, plane)
            receiver = plane.receiver()
            offer = receiver.offer()
            assert offer is not None
            assert (offer.version, offer.transport) == (INITIAL, "disk" if transport == "disk" else "shm")
            place = Path(offer.address)
            assert place.is_absolute()
            assert place.is_dir()
            _, tensors = receiver.receive()
            assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
                name: parameter.tolist() for name, parameter in model.named_parameters()
            }
        assert not place.exists()
    check = offer.swap_check
    assert check is not None
    assert check.temperature == 1.0
    assert check.fault(scored(FrozenScorer(model).logprobs, check.tokens), "float32") is None
    torch.manual_seed(1)
    other = load_causal_lm(str(make_model(tmp_path / "other", "llama")), dtype=torch.float32, device="cpu")
    score = partial(scored, FrozenScorer(other).logprobs)
    assert check.fault(score(check.tokens), "float32") is not None


def test_where_no_server_is_attached_it_stays_in_memory(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    with plane_of(plan.config, None) as plane:
        publish_first(plan, plane)
        offer = plane.receiver().offer()
    assert isinstance(plane, MemoryPublisher)
    assert offer is not None
    assert offer.swap_check is None


@pytest.mark.parametrize("transport", ["shm", "disk"])
def test_a_server_that_does_not_see_it_is_refused(tmp_path: Path, transport: str) -> None:
    words = r"engine\.url 'http://10\.0\.0\.7:1' is beyond this machine, .* use weights\.transport: gloo"
    job = make_job(tmp_path / "job", weights__transport=transport, **BEYOND)
    with pytest.raises(ConfigError, match=words), plane_of(load_config(TrainConfig, job, []), None):
        pass
