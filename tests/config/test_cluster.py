"""The section of a cluster: places of roles, and the short forms that others have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import ConfigError, SFTConfig, TrainConfig, load_config
from headrace.config.cluster import ClusterConfig, PlaceConfig, logical_devices, resource_overrides

SEED = {"actor": [1, 2], "rollout": [1, 4], "reference": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}
"""As `--resource` of Relax has it: services, and devices in all."""


def test_a_resource_of_the_seeds_is_read() -> None:
    place = ClusterConfig(place=SEED).place  # type: ignore[arg-type]
    assert {role: each.devices_together for role, each in place.items()} == {
        "trainer": 2,
        "engine": 4,
        "reference": 1,
        "proximal": 1,
        "functions": 0,
    }
    assert [place["engine"].each(workers) for workers in (1, 4, 8)] == [4, 1, 0.5]
    with pytest.raises(ValueError, match="has 4 devices for 3 workers, which share them unevenly"):
        place["engine"].each(3)


def test_rollout_with_keys_is_those_that_play() -> None:
    place = ClusterConfig(place={"rollout": {"strategy": "spread"}, "actor": {"devices": 0.5}}).place  # type: ignore[dict-item]
    assert place == {"rollout": PlaceConfig(strategy="spread"), "trainer": PlaceConfig(devices=0.5)}


def test_sets_are_of_roles_by_either_name() -> None:
    given = ClusterConfig(colocate=[["actor", "reference"], ["critic", "reward"]])  # type: ignore[arg-type,list-item]
    assert given.sets == (("trainer", "reference"), ("critic", "reward"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"place": {"engine": {"devices": 1.5}}}, "devices is 1.5; use a whole number, or a part below 1"),
        ({"place": {"engine": [2, 4]}}, r"asks for 2 services, and a role is one; use \[1, 4\]"),
        ({"place": {"engine": [1]}}, r"\[1\] is no place; write \[1, DEVICES\]"),
        ({"place": {"engine": {"cpus": 0}}}, "greater than 0"),
        ({"place": {"actor": {}, "trainer": {}}}, "trainer is given twice, as actor and trainer; drop one"),
        ({"place": {"rollout": [1, 2], "engine": {}}}, "engine is given twice, as rollout and engine; drop one"),
        ({"place": {"engines": {}}}, "Input should be 'trainer'"),
        *(({"device": name}, "which Ray counts by itself") for name in ("CPU", "memory", "object_store_memory")),
        ({"colocate": [["actor"]]}, "one role shares with nobody"),
        ({"colocate": [["actor", "critic"], ["critic", "reward"]]}, "colocate names critic twice"),
        ({"colocate": "all", "place": {"engine": {"devices": 2}}}, "shares one device at most"),
        (
            {"colocate": "all", "place": {"engine": {"strategy": "spread"}, "trainer": {}}},
            "are colocated, and not all have the same strategy",
        ),
        ({"place": {"engine": {"devices": 1, "devices_together": 2}}}, "are both given; drop one"),
    ],
)
def test_what_cannot_be_meant_is_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ClusterConfig(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cluster": {"place": {"engine": {}}}}, "runtime.kind is inline; set runtime.kind: ray"),
        ({"cluster": {"local_devices": 2}, "runtime": {"kind": "ray"}}, "set cluster.device to a name of its own"),
    ],
)
def test_places_are_of_a_cluster(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig(model={"path": "m"}, data={"train": "d"}, **given)  # type: ignore[arg-type]


def test_logical_devices_are_of_a_ray_of_the_runs_own() -> None:
    given = {"model": {"path": "m"}, "data": {"train": "d"}, "cluster": {"device": "slot", "local_devices": 2}}
    made = SFTConfig.model_validate({**given, "runtime": {"kind": "ray"}})
    assert logical_devices(made.cluster) == {"slot": 2}
    with pytest.raises(ValidationError, match=r"set cluster\.device to a name of its own, without runtime\.address"):
        SFTConfig.model_validate({**given, "runtime": {"kind": "ray", "address": "auto"}})


def test_the_option_is_overrides_that_others_go_on_from() -> None:
    assert resource_overrides('{"actor": [1, 2], "rollout": [1, 4], "advantages": {}}') == [
        'cluster.place.trainer={"devices_together": 2}',
        'cluster.place.engine={"devices_together": 4}',
        'cluster.place.functions={"devices": 0}',
    ]
    for wrong, words in (("[1]", "no mapping of roles"), ("{", "Expecting"), ('{"x": [1, 2]}', "should be 'trainer'")):
        with pytest.raises(ConfigError, match=words):
            resource_overrides(wrong)


def placed(there: dict[str, Any], overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is said of each role, once `overrides` have gone before the places of a file."""
    given = {"model": {"path": "m"}, "data": {"train": "d"}, "runtime": {"kind": "ray"}, "cluster": {"place": there}}
    place = load_config(TrainConfig, given, overrides).cluster.place
    return {role: each.model_dump(exclude_unset=True) for role, each in place.items()}


@pytest.mark.parametrize(
    ("there", "option", "found"),
    [
        ({"actor": [1, 4]}, {"actor": [1, 2]}, {"trainer": {"devices_together": 2}}),
        ({"trainer": [1, 4]}, {"actor": [1, 2]}, {"trainer": {"devices_together": 2}}),
        ({"rollout": [1, 4]}, {"rollout": [1, 2]}, {"engine": {"devices_together": 2}}),
        ({"trainer": {"devices_together": 4}}, {"actor": {"devices": 1}}, {"trainer": {"devices": 1}}),
        ({"actor": {"devices": 1, "cpus": 4}}, {"trainer": [1, 2]}, {"trainer": {"devices_together": 2, "cpus": 4}}),
        ({"trainer": {"devices": 1, "cpus": 4}}, {"actor": {}}, {"trainer": {"devices": 0, "cpus": 4}}),
        ({"engine": [1, 4]}, {"engine": {"devices": 0, "cpus": 2}}, {"engine": {"devices": 0, "cpus": 2}}),
        (
            {"rollout": {"cpus": 2}},
            {"rollout": [1, 2]},
            {"rollout": {"cpus": 2}, "engine": {"devices_together": 2}},
        ),
    ],
)
def test_the_option_goes_before_every_form_of_a_file(
    there: dict[str, Any], option: dict[str, Any], found: dict[str, Any]
) -> None:
    assert placed(there, resource_overrides(json.dumps(option))) == found


@pytest.mark.parametrize(
    ("there", "overrides", "found"),
    [
        ({"trainer": [1, 4]}, ["cluster.place.actor=[1, 2]"], {"trainer": {"devices_together": 2}}),
        ({"actor": {"cpus": 2}}, ["cluster.place.actor=[1, 2]"], {"trainer": {"devices_together": 2, "cpus": 2}}),
        ({"actor": [1, 4]}, ["cluster.place.trainer.cpus=2"], {"trainer": {"devices_together": 4, "cpus": 2}}),
        ({}, ["cluster.place.actor=[1, 2]", "cluster.place.trainer.devices=1"], {"trainer": {"devices": 1}}),
        ({"rollout": [1, 4]}, {"cluster.place.rollout": (1, 2)}, {"engine": {"devices_together": 2}}),
        ({"actor": [1, 4]}, {"cluster": {"place": {"trainer": {"devices": 1}}}}, {"trainer": {"devices": 1}}),
        ({"actor": None}, ["cluster.place.actor=[1, 2]"], {"trainer": {"devices_together": 2}}),
        (
            {"rollout": [1, 4]},
            ["cluster.place.rollout.strategy=spread"],
            {"engine": {"devices_together": 4}, "rollout": {"strategy": "spread"}},
        ),
        (  # what refers to a role's place goes with it
            {"actor": {"devices": 1}, "critic": "${cluster.place.actor}"},
            ["cluster.place.trainer=[1, 2]"],
            {"trainer": {"devices_together": 2}, "critic": {"devices_together": 2}},
        ),
        (  # and not the other way round
            {"actor": [1, 2], "critic": "${cluster.place.actor}"},
            ["cluster.place.critic.devices=1"],
            {"trainer": {"devices_together": 2}, "critic": {"devices": 1}},
        ),
    ],
)
def test_overrides_of_places_go_by_role(
    there: dict[str, Any], overrides: Sequence[str] | Mapping[str, Any], found: dict[str, Any]
) -> None:
    assert placed(there, overrides) == found


@pytest.mark.parametrize(
    ("there", "override", "words"),
    [
        ({"actor": [2, 4]}, "cluster.place.trainer.cpus=2", r"cluster.place.trainer: \[2, 4\] asks for 2 services"),
        ({"actor": [1, 4]}, "cluster.place.trainer=[2, 2]", r"cluster.place.trainer: \[2, 2\] asks for 2 services"),
        ({}, "cluster.place.engine={devices: 1, devices_together: 2}", "are both given; drop one"),
        (
            {"engine": {}},
            "cluster.place={actor: [1, 2], trainer: {}}",
            "override .*: trainer is given twice, as actor and trainer; drop one",
        ),
    ],
)
def test_an_override_of_places_that_cannot_be_meant_is_told(there: dict[str, Any], override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        placed(there, [override])


def test_the_option_goes_before_what_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "model: {path: m}\ndata: {train: d}\nreward: {function: numeric}\nruntime: {kind: ray}\n"
        "cluster: {place: {trainer: {devices: 1, cpus: 4}}}\n"
    )
    made = load_config(TrainConfig, file, resource_overrides('{"actor": [1, 2]}'))
    place = made.cluster.place["trainer"]
    assert (place.devices, place.devices_together, place.cpus) == (0, 2, 4)
