"""Cases of the fault matrix: a seed gives a config, what goes wrong, and how long answers are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import TrainConfig
from headrace.controller.simulation.outside import Costs
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.simulation.simulated_run import Faults, Outcome, simulate
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineFaults

LIMIT_S = 3_000.0
"""Of virtual time, in which each case ends."""
RULES = ("wait", "mask", "drop", "late")
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "one_step_off": {"mode": "one_step_off"},
    "async 1": {"max_staleness": 1, "ahead": 8},
    "async 2": {"max_staleness": 2, "ahead": 12},
    "async 4": {"max_staleness": 4, "ahead": 20},
}
RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": {"recipe": "ppo"}},
    "ppo with reference": {
        "algorithm": {"recipe": "ppo", "kl": {"coefficient": 0.01}},
        "reference": {"placement": "own"},
    },
    "grpo with hybrid reference": {
        "algorithm": {"kl": {"coefficient": 0.01}},
        "reference": {"placement": "hybrid"},
    },
    "grpo with reference that follows": {
        "algorithm": {"kl": {"coefficient": 0.01}},
        "reference": {"refresh_every": 3},
    },
    "m2po with own proximal": {"algorithm": {"recipe": "m2po"}, "proximal": {"placement": "own"}},
}
WITH_CRITIC = ("ppo", "ppo with reference")


@dataclass(frozen=True, slots=True)
class Case:
    seed: int
    mode: str
    recipe: str
    rule: str
    replicas: int
    config: TrainConfig
    faults: Faults
    costs: Costs

    def run(self, *, keeps_trace: bool = False) -> Outcome:
        return simulate(
            self.config, self.seed, self.faults, costs=self.costs, prompts=200, keeps_trace=keeps_trace, limit_s=LIMIT_S
        )

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.mode}, {self.recipe}, on_deadline {self.rule}, {self.replicas} engines"


def case_of(seed: int) -> Case:
    """All pairs of rule, mode and recipe come in any 120 seeds in a row; what else may vary, about every third has."""
    chance = random.Random(seed)
    rule, mode = RULES[seed % 4], list(MODES)[seed // 4 % len(MODES)]
    recipe = list(RECIPES)[(seed // 4 + 2 * (seed // 20)) % len(RECIPES)]
    replicas = 1 + seed // 2 % 3
    faults = Faults(rollout=RolloutFaults(workers=chance.randint(2, 3)), restart_s=5.0)
    kinds = [kind for kind in _KINDS if recipe in WITH_CRITIC or "critic" not in kind]
    for kind in (*chance.sample(kinds, 4), "worker dies"):
        faults = _KINDS[kind](faults, chance, replicas)
    tail = chance.choice((0.5, 1.5, 1.5))
    return Case(
        seed,
        mode,
        recipe,
        rule,
        replicas,
        _config(mode, recipe, rule, replicas, random.Random(f"more of {seed}")),
        faults,
        Costs(answers=Answers(mean_tokens=40, spread=tail)),
    )


def _config(mode: str, recipe: str, rule: str, replicas: int, chance: random.Random) -> TrainConfig:
    made: dict[str, Any] = {
        "model": {"path": "nowhere"},
        "data": {"train": "nowhere.jsonl"},
        "reward": {"function": "exact_match"},
        "rollout": {
            "prompts_per_batch": 4,
            "samples_per_prompt": 2,
            "sampling": {"max_new_tokens": 400},
            "episode_timeout_s": 3600,
        },
        "engine": {"replicas": replicas},
        "async": {**MODES[mode], "on_deadline": rule},
        "trainer": {"batches": 8},
        "checkpoint": {"every": 2},
        "record": {"journal": "all"},
        "runtime": {"stall_timeout_s": 3600},
        **RECIPES[recipe],
    }
    algorithm = dict(made.get("algorithm", {}))
    if chance.random() < 0.3:
        made["async"]["swap"] = chance.choice(("keep", "drain"))
    if chance.random() < 0.3:
        made["engine"]["spread"] = "episode"
    if chance.random() < 0.3:
        made["data"]["eval"] = "held_out.jsonl"
        made["evaluation"] = {"every": 3, "max_prompts": 4}
    if chance.random() < 0.3:
        algorithm["updates_per_batch"] = 2
    elif chance.random() < 0.3 and recipe not in WITH_CRITIC:
        algorithm["epochs_per_batch"] = 2
    if rule == "drop" and chance.random() < 0.5:
        made["rollout"]["oversample"] = 1.5
    if mode == "sync" and chance.random() < 0.5:
        made["engine"]["colocated"] = True
    elif chance.random() < 0.3:
        made["engine"]["lent"] = 1
    return TrainConfig.model_validate({**made, "algorithm": algorithm})


def _worker_dies(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    workers = faults.rollout.workers
    deaths = tuple((chance.uniform(0.5, 14.0), chance.randrange(workers)) for _ in range(chance.randint(2, 5)))
    return replace(faults, rollout=replace(faults.rollout, deaths=deaths, lingers_s=chance.choice((0.0, 2.0, 10.0))))


def _poison(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    return replace(faults, rollout=replace(faults.rollout, poison=((0, chance.randrange(12)),)))


def _engine(faults: Faults, chance: random.Random, replicas: int, **what: Any) -> Faults:
    index = chance.randrange(replicas)
    return replace(
        faults, engines={**faults.engines, index: replace(faults.engines.get(index, EngineFaults()), **what)}
    )


def _engine_dies(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    return _engine(faults, chance, replicas, dies_at=chance.uniform(0.5, 8.0))


def _engine_slow(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    begins = chance.uniform(0.0, 6.0)
    return _engine(
        faults, chance, replicas, slow=((begins, begins + chance.uniform(3.0, 10.0), chance.uniform(3, 10)),)
    )


def _swap_wrong(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    return _engine(faults, chance, replicas, failing_swaps=frozenset(chance.sample(range(1, 7), 3)))


def _swap_lost(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    return _engine(faults, chance, replicas, lost_swaps=frozenset(chance.sample(range(1, 7), 3)))


def _swap_late(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    late = {version: chance.uniform(2.0, 8.0) for version in chance.sample(range(1, 7), 3)}
    return _engine(faults, chance, replicas, late_swaps=late)


def _trainer_dies(name: str) -> Callable[[Faults, random.Random, int], Faults]:
    def die(faults: Faults, chance: random.Random, replicas: int) -> Faults:
        training, at = faults.training, chance.randint(1, 8)
        if at % 3:
            return replace(faults, training=replace(training, deaths=(*training.deaths, (name, at))))
        # Beside another's, no more than a run bears with between two commits.
        more = {"deaths_in_steps": (*training.deaths_in_steps, (name, at))}
        if at == 3:
            more["deaths_in_sleep"] = (*training.deaths_in_sleep, (name, at))
        else:
            more["deaths_in_writes"] = (*training.deaths_in_writes, (name, at // 3))
        return replace(faults, training=replace(training, **more))

    return die


def _lease_lost(name: str) -> Callable[[Faults, random.Random, int], Faults]:
    def lose(faults: Faults, chance: random.Random, replicas: int) -> Faults:
        lost = tuple((name, chance.randint(1, 8)) for _ in range(2))
        return replace(faults, training=replace(faults.training, lost_leases=(*faults.training.lost_leases, *lost)))

    return lose


def _disk(name: str) -> Callable[[Faults, random.Random, int], Faults]:
    def fail(faults: Faults, chance: random.Random, replicas: int) -> Faults:
        begins = chance.uniform(0.5, 10.0)
        window = (begins, begins + chance.uniform(0.5, 4.0), *((chance.uniform(20, 200),) if name == "slow" else ()))
        return replace(faults, disk=replace(faults.disk, **{name: (window,)}))

    return fail


def _power_cut(faults: Faults, chance: random.Random, replicas: int) -> Faults:
    return replace(faults, power_cuts_after=tuple(chance.randint(5, 500) for _ in range(chance.randint(1, 2))))


_KINDS: dict[str, Callable[[Faults, random.Random, int], Faults]] = {
    "worker dies": _worker_dies,
    "poison": _poison,
    "engine dies": _engine_dies,
    "engine slow": _engine_slow,
    "swap wrong": _swap_wrong,
    "swap lost": _swap_lost,
    "swap late": _swap_late,
    "actor dies": _trainer_dies("actor"),
    "critic dies": _trainer_dies("critic"),
    "actor loses a lease": _lease_lost("actor"),
    "critic loses a lease": _lease_lost("critic"),
    "disk slow": _disk("slow"),
    "disk full": _disk("full"),
    "sync fails": _disk("failing_syncs"),
    "power cut": _power_cut,
}
