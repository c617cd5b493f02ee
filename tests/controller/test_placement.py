"""What a run asks a cluster for, and the drawing of it, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.config import ConfigError, TrainConfig
from headrace.controller.building.processors import silence_of, threads_of_worker
from headrace.controller.planning.node_needs import meeting_of, needs_by_kind, together_of
from headrace.controller.planning.placement import run_teams
from headrace.controller.planning.placement_view import drawn
from headrace.runtime.placing import Bundle
from headrace.runtime.workers import Silence


def config(cluster: dict[str, Any], **more: Any) -> TrainConfig:
    return TrainConfig(
        model={"path": "m"},  # type: ignore[arg-type]
        data={"train": "d"},  # type: ignore[arg-type]
        algorithm={"kl": {"coefficient": 0.1}},  # type: ignore[arg-type]
        **{"runtime": {"kind": "ray", "threads": 8}, "engine": {"replicas": 2}, "cluster": cluster, **more},
    )


def told(bundle: Bundle) -> list[tuple[str, float]]:
    return [(name, bundle.devices) for name in bundle.workers]


def test_workers_of_a_set_are_together_by_number() -> None:
    teams = run_teams(config({"place": {"engine": [1, 1]}, "colocate": [["actor", "engine"]]}), 2)
    (team,) = teams.teams
    assert [bundle.workers for bundle in team.bundles] == [("trainer/0", "engine/0"), ("engine/1",)]
    assert [bundle.devices for bundle in team.bundles] == [0.5, 0.5]
    assert [*teams.one_more] == ["engine"]


def test_all_are_those_that_the_run_has() -> None:
    (team,) = run_teams(config({"colocate": "all"}), 1).teams
    assert team.bundles[0].workers == ("trainer/0", "reference/0", "engine/0", "rollout/0")


def test_a_colocated_role_that_the_run_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.colocate names critic, and this run has none of that role"):
        run_teams(config({"colocate": [["engine", "critic"]]}), 1)


def test_a_colocated_worker_that_has_several_devices_by_the_short_form_is_refused() -> None:
    both = {"place": {"engine": [1, 4], "reference": [1, 1]}, "colocate": [["engine", "reference"]]}
    words = r"cluster\.place\.engine has 2 devices for each worker, and one that is colocated shares one device at most"
    with pytest.raises(ConfigError, match=words):  # as with `devices: 2`; there are two engines
        run_teams(config(both), 0)
    (team,) = run_teams(config({**both, "place": {"engine": [1, 2], "reference": [1, 1]}}), 0).teams
    assert [bundle.devices for bundle in team.bundles] == [1, 1]


def test_a_role_that_the_run_does_not_have_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.place\.critic places workers, and this run has none of that role"):
        run_teams(config({"place": {"critic": {}}}), 0)


def test_no_devices_for_a_role_that_the_run_does_not_have_are_none() -> None:
    """As the line has it that the short form is known from."""
    given = {"actor": [1, 2], "rollout": [1, 4], "reference": [1, 1], "actor_fwd": [1, 0], "advantages": [1, 0]}
    made = config({"place": given}, trainer={"layout": "d2"}, engine={"replicas": 4})
    claims = {name: claim for team in run_teams(made, 1).teams for each in team.bundles for name, claim in told(each)}
    assert claims == {
        **{f"trainer/{rank}": 1 for rank in range(2)},
        **{f"engine/{number}": 1 for number in range(4)},
        "reference/0": 1,
    }


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"engine": [1, 4]}, "engine has 2 devices for each worker, .* use for all of them engine.replicas: 4"),
        ({"trainer": [1, 2]}, "trainer has 2 devices for each worker, .* use for all of them trainer.layout: d2"),
        ({"reference": {"devices": 3}}, "reference has 3 devices .* reference.layout: d3"),
        ({"rollout": {"devices": 2}}, "rollout has 2 devices for each worker, .* use 1 for each"),
    ],
)
def test_devices_that_a_worker_would_not_use_are_refused(place: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_teams(config({"place": place}), 1)


def test_a_worker_computes_with_the_processors_of_its_place() -> None:
    made = config({"place": {"engine": {"cpus": 3}}})
    assert threads_of_worker(made, "engine") == 3
    assert threads_of_worker(made, "trainer") == threads_of_worker(made)


def test_a_run_s_own_ray_is_drawn() -> None:
    given = {
        "device": "slot",
        "local_devices": 2,
        "place": {"engine": {"devices": 0.5}, "trainer": {"devices": 1, "cpus": 2}},
    }
    assert drawn(config(given), 1) == [
        "  node this machine, with the controller: 8 CPU, 2 slot free",
        "    slot 0         trainer/0 (all of it)",
        "    slot 1         engine/0 (0.5 of it), engine/1 (0.5 of it)",
        "    not counted    reference/0, rollout/0",
    ]


def test_engines_that_are_lent_share_the_trainers_devices_and_processors() -> None:
    given = {
        "device": "slot",
        "local_devices": 4,
        "place": {"engine": {"devices": 1}, "trainer": {"devices": 1, "cpus": 2}},
    }
    lent = {"trainer": {"layout": {"dp": 2}}, "engine": {"replicas": 2, "lent": 2}}
    made = config(given, **lent)
    assert drawn(made, 0)[1:5] == [
        "    slot 0         trainer/0 + lent/0 (all of it)",
        "    slot 1         trainer/1 + lent/1 (all of it)",
        "    slot 2         engine/0 (all of it)",
        "    slot 3         engine/1 (all of it)",
    ]
    assert threads_of_worker(made, "lent") == threads_of_worker(made, "trainer") == 2
    (team, _) = run_teams(made, 0).teams
    assert [bundle.cpus for bundle in team.bundles] == [2, 2]
    both = {**given, "colocate": [["trainer", "reference"]]}
    assert run_teams(config(both, **lent), 0).teams[0].bundles[0].workers == ("trainer/0", "reference/0", "lent/0")
    with pytest.raises(ValueError, match=r"engines that are lent \(engine.lent\) are where the trainer is"):
        config({"place": {"lent": {"devices": 1}}}, **lent)


def test_each_rank_of_a_scorer_has_a_place() -> None:
    given = {
        "device": "slot",
        "local_devices": 2,
        "place": {"reference": {"devices": 0.5}, "trainer": {"devices": 1}},
    }
    ranks = {"reference": {"layout": "d2"}}
    assert drawn(config(given, **ranks), 0)[1:3] == [
        "    slot 0         trainer/0 (all of it)",
        "    slot 1         reference/0 (0.5 of it), reference/1 (0.5 of it)",
    ]
    short = {**given, "place": {"reference": {"devices": 1}, "trainer": {"devices": 1}}}
    with pytest.raises(ConfigError, match="no node has room for reference/1, which ask for 1 slot and 1 CPU"):
        drawn(config(short, **ranks), 0)
    assert together_of(config(given, **ranks)) == ("trainer", "critic")
    assert together_of(config(given, reference={"layout": "t2"})) == ("trainer", "critic", "reference")


def test_what_it_has_no_room_for_is_told() -> None:
    given = {"device": "slot", "local_devices": 1, "place": {"engine": {"devices": 1}}}
    with pytest.raises(ConfigError, match="no node has room for engine/1, which ask for 1 slot and 1 CPU"):
        drawn(config(given), 0)


def test_nodes_have_to_see_what_their_workers_use(tmp_path: Path) -> None:
    code, run, memory = tmp_path / "code.py", tmp_path / "run", tmp_path / "memory"
    for each in (code, run, memory):
        each.write_text(each.name)
    made = config({}, rollout={"environment": f"{code}:Game"})
    needs = needs_by_kind(made, run, memory)
    paths = {role: [Path(file.path).name for file in each.files] for role, each in needs.items()}
    assert paths["rollout"] == ["code.py", "run"]
    assert paths["engine"] == paths["reference"] == []
    assert paths["trainer"] == ["code.py", "run"]
    by_shm = needs_by_kind(made.model_copy(update={"weights": made.weights.model_copy(update={"transport": "shm"})}),
                      run, memory)  # fmt: skip
    assert [Path(file.path).name for file in by_shm["engine"].files] == ["memory"]
    assert [Path(file.path).name for file in by_shm["trainer"].files] == ["code.py", "run", "memory"]
    by_disk = needs_by_kind(made.model_copy(update={"weights": made.weights.model_copy(update={"transport": "disk"})}),
                       run, memory)  # fmt: skip
    assert [Path(file.path).name for file in by_disk["engine"].files] == ["run"]


def test_new_weights_leave_a_machine_only_where_the_config_says_so() -> None:
    assert meeting_of(config({})) == ("trainer", "engine", "lent", "proximal")
    assert meeting_of(config({}, weights={"host": "10.0.0.7"})) == ()
    assert meeting_of(config({}, weights={"transport": "disk"})) == ()


def test_a_worker_s_event_loop_may_stand_for_half_a_minute_unless_told() -> None:
    assert silence_of(config({})) == Silence(30.0, "runtime.stuck.event_loop_s")
    given = {"kind": "ray", "stuck": {"event_loop_s": 80, "layer_s": 7}}
    assert silence_of(config({}, runtime=given)).most_s == 80
    made = config({}, runtime={**given, "stall_timeout_s": 60}, rollout={"episode_timeout_s": 50})
    assert silence_of(made).reason(20.6) == (
        "its event loop has not turned for 21 s, of which 20 are allowed (runtime.stall_timeout_s / 3)"
    )
    assert made.runtime.stuck.limits == {"layer": 7}


def test_ranks_of_one_model_are_on_several_machines_only_where_the_config_says_how() -> None:
    assert together_of(config({})) == ("trainer", "critic")
    assert together_of(config({}, weights={"host": "::1"})) == ("trainer", "critic")
    assert together_of(config({}, weights={"host": "10.0.0.7"})) == ()
