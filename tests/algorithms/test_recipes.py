import subprocess
import sys
import typing

import pytest

from headrace.algorithms.recipes import DataflowError, Recipe, Stage, check_dataflow, compose
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.recipe_defaults import RECIPE_DEFAULTS


def names(stages: typing.Iterable[Stage]) -> list[str]:
    return [stage.name for stage in stages]


NAMES = typing.get_args(AlgorithmConfig.model_fields["recipe"].annotation)
GRPO = compose(AlgorithmConfig())


def test_every_name_has_its_defaults() -> None:
    assert set(NAMES) == set(RECIPE_DEFAULTS)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_whole(name: str) -> None:
    recipe = compose(AlgorithmConfig(recipe=name))
    assert sorted(names(check_dataflow(recipe.stages))) == sorted(names(recipe.stages))
    assert set(recipe.loss) <= set(names(recipe.stages))


def test_grpo_streams_and_runs_in_this_order() -> None:
    assert names(check_dataflow(tuple(reversed(GRPO.stages)))) == [
        "rollout",
        "filter",
        "advantages",
        "schedule",
        "actor",
    ]
    assert GRPO.stops_streaming == ()


def test_ppo_has_all_roles_and_waits_for_the_batch_only_to_whiten() -> None:
    ppo = compose(AlgorithmConfig(recipe="ppo"))
    assert names(ppo.stages) == [
        "rollout",
        "filter",
        "schedule",
        "reference",
        "critic.value",
        "advantages",
        "critic.update",
        "actor",
    ]
    assert ppo.stops_streaming == ("advantages",)
    assert compose(AlgorithmConfig(recipe="ppo", whiten=False)).stops_streaming == ()
    assert ppo.loss == {"actor": "clipped_surrogate", "critic.update": "value_loss"}


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_model_scores_what_the_rollout_gave_before_anybody_sees_the_reward(name: str) -> None:
    recipe = compose(AlgorithmConfig(recipe=name), reward_model=True)
    stages = {stage.name: stage for stage in recipe.stages}
    read = ("tokens", "loss_mask", "scored", "episode")
    assert stages["reward"] == Stage("reward", read, ("reward", "model_score"), "row")
    assert "scored" in stages["rollout"].writes
    assert "reward" not in stages["rollout"].writes
    order = names(check_dataflow(recipe.stages))
    assert order.index("rollout") < order.index("reward") < order.index("filter")
    plain = compose(AlgorithmConfig(recipe=name))
    others = [stage for stage in recipe.stages if stage.name not in ("rollout", "reward", "actor")]
    assert others == list(plain.stages[1:-1])
    assert set(stages["actor"].reads) == {*plain.stages[-1].reads, "model_score"}


def test_a_reference_is_read_where_its_kl_goes() -> None:
    def readers(place: str) -> list[str]:
        recipe = compose(AlgorithmConfig(kl={"coefficient": 0.1, "place": place}))
        return [stage.name for stage in recipe.stages if "reference" in stage.reads]

    assert readers("loss") == ["actor"]
    assert readers("reward") == ["advantages", "actor"]


def test_in_order_models_score_a_row_only_once_it_is_in_the_batch() -> None:
    """A restore brings back rows of later batches, which later weights are to score."""
    settings = AlgorithmConfig(recipe="ppo")
    for in_order in (False, True):
        recipe = compose(settings, in_order=in_order)
        assert sorted(names(check_dataflow(recipe.stages))) == sorted(names(recipe.stages))
        for name in ("reference", "critic.value"):
            assert ("batch" in recipe.stage(name).reads) is in_order
    teacher = compose(AlgorithmConfig(recipe="opd"), in_order=True).stage("teacher")
    assert "batch" in teacher.reads


def test_a_stage_of_a_whole_batch_stops_streaming() -> None:
    whiten = Stage("whiten", ("advantages",), ("whitened",), "batch")
    assert Recipe("x", (*GRPO.stages, whiten), {}).stops_streaming == ("whiten",)


def test_a_column_that_nothing_writes_is_named_with_its_reader() -> None:
    without = [stage for stage in GRPO.stages if stage.name != "advantages"]
    with pytest.raises(DataflowError, match="column advantages is read by stage actor, and nothing writes it"):
        check_dataflow(without)
    check_dataflow(without, sources=("advantages",))


def test_a_column_with_two_writers_is_named_with_both() -> None:
    judge = Stage("judge", ("tokens",), ("reward",), "row")
    with pytest.raises(DataflowError, match="column reward is written by stage rollout and by stage judge"):
        check_dataflow((*GRPO.stages, judge))
    with pytest.raises(DataflowError, match="column reward is written by the dataset and by stage rollout"):
        check_dataflow(GRPO.stages, sources=("reward",))


def test_all_faults_are_told_at_once() -> None:
    stages = (Stage("a", ("x",), ("y",), "row"), Stage("b", ("z",), ("y",), "row"))
    with pytest.raises(DataflowError) as error:
        check_dataflow(stages)
    assert all(f"column {column} " in str(error.value) for column in "xyz")


def test_a_circle_is_told_without_the_stages_behind_it() -> None:
    stages = (
        Stage("behind", ("p",), ("q",), "row"),
        Stage("one", ("r",), ("p",), "row"),
        Stage("two", ("p",), ("r",), "row"),
    )
    with pytest.raises(DataflowError) as error:
        check_dataflow(stages)
    message = str(error.value)
    assert "stage one reads r, written by two" in message
    assert "stage two reads p, written by one" in message
    assert "behind" not in message


def test_a_stage_that_reads_what_it_writes_is_a_circle() -> None:
    with pytest.raises(DataflowError, match="stage loop reads x, written by loop"):
        check_dataflow((Stage("loop", ("x",), ("x",), "row"),))


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(DataflowError, match="two stages are named a"):
        check_dataflow((Stage("a", (), ("x",), "row"), Stage("a", (), ("y",), "row")))


def test_recipes_do_without_torch() -> None:
    program = "import sys, headrace.algorithms.recipes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
