from __future__ import annotations

import pytest
from rollout_helpers import ScriptedEngine, says

from headrace.engines.protocol import EngineError
from headrace.rollout.router import Router, choose_engine
from headrace.weights.version import Version

V0, V1, V2 = Version(0, 0), Version(0, 1), Version(0, 2)


def test_the_least_loaded_engine_that_is_new_enough_is_chosen() -> None:
    assert choose_engine([5, 1, 3], [V1, V0, V2], V1) == 2
    assert choose_engine([5, 1, 3], [V1, V0, V2], None) == 1
    assert choose_engine([2, 2], [V1, V1], V1) == 0
    assert choose_engine([2, 9], [V1, V1], V1, excluded=[0]) == 1
    assert choose_engine([0, 0], [V1, V1], V2) is None


def test_a_newer_branch_serves_what_an_older_one_asked_for() -> None:
    assert choose_engine([0], [Version(1, 0)], V2) == 0


def test_a_lease_counts_as_load_until_it_ends() -> None:
    router = Router([ScriptedEngine(says("a")), ScriptedEngine(says("b"))])
    with router.lease(V0) as (first, _), router.lease(V0) as (second, _):
        assert (first, second) == (0, 1)
        assert router.loads == (1, 1)
    assert router.loads == (0, 0)


def test_without_an_engine_the_error_says_what_was_wanted_and_what_there_is() -> None:
    router = Router([ScriptedEngine(says("a"), version=V1), ScriptedEngine(says("a"), version=V2)])
    with pytest.raises(EngineError, match=r"v2 or newer; engines have v1, v2 \(failed\)"), router.lease(V2, {1}):
        pass
