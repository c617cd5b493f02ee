"""What a run's workers ask a cluster for, as the config has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.config import ConfigError, TrainConfig
from headrace.config.cluster import LENT, ROLES, PlaceConfig, Role, shares_too_many
from headrace.config.places import key_of, layouts_of
from headrace.controller.planning.judges import own_judges
from headrace.runtime.placing import Bundle, Claim, Team, Teams


def run_teams(config: TrainConfig, rollouts: int) -> Teams:
    """`rollouts`: workers that play. Raises ConfigError."""
    cluster, counts = config.cluster, worker_counts(config, rollouts)
    unused = [role for role in cluster.place if not counts[role]]
    if places := next((role for role in unused if cluster.place[role].devices_together != 0), None):
        raise ConfigError(f"cluster.place.{places} places workers, and this run has none of that role; leave it out")
    placed = {role: place for role, place in cluster.place.items() if role not in unused}
    for each in cluster.sets:
        if missing := next((role for role in each if not counts[role]), None):
            raise ConfigError(f"cluster.colocate names {missing}, and this run has none of that role; leave it out")
    shared, alone = role_sets(config, counts)
    together, sets = [role for each in shared for role in each], [*shared, *alone]
    claims = {
        role: claims_for(role, placed.get(role, PlaceConfig()), counts[role], role) for each in sets for role in each
    }
    if LENT in claims:
        claims[LENT] = [replace(each, devices=claims["trainer"][0].devices, cpus=0.0) for each in claims[LENT]]
    for role in together:
        if (devices := claims[role][0].devices) > 1:
            raise ConfigError(f"cluster.place.{role} {shares_too_many(devices)}")
    if not config.engine.has_server:
        check_used("engine", claims.get("engine", ()), "engine.replicas: {}")
    layouts = layouts_of(config)
    for role, found in claims.items():
        if role in layouts:
            check_used(role, found, f"{key_of(role)}.layout: d{{}}" if layouts[role].ranks == 1 else "")
        elif role != "engine":
            check_used(role, found)
    return Teams(
        tuple(_team([claims[role] for role in each], _spreads(config, each)) for each in sets if each),
        {
            role: Team((Bundle((found[0],)),), _spreads(config, (role,)))
            for role, found in claims.items()
            if role in placed
        },
        cluster.device,
    )


def role_sets(config: TrainConfig, counts: Mapping[Role, int]) -> tuple[list[tuple[Role, ...]], list[tuple[Role, ...]]]:
    """Of the roles that the run has workers of, `counts` of each: those that are colocated, set by set, and those that
    are placed by themselves."""
    cluster = config.cluster
    sets: list[tuple[Role, ...]] = [tuple(ROLES)] if cluster.colocate == "all" else [*map(_with_lent, cluster.sets)]
    if counts[LENT] and "trainer" in cluster.place and not any("trainer" in each for each in sets):
        sets.append(_with_lent(("trainer",)))
    sets = [tuple(role for role in each if counts[role]) for each in sets]
    together = [role for each in sets for role in each]
    placed = [role for role in ROLES if role in cluster.place and counts[role]]
    return sets, [(role,) for role in placed if role not in together]


def worker_counts(config: TrainConfig, rollouts: int) -> Mapping[Role, int]:
    """Workers of each role that the run begins with."""
    apart, layouts = (*config.trainer_processes, *config.scorer_processes), layouts_of(config)

    def ranks(role: Role) -> int:
        return layouts[role].ranks if role in apart else 0

    return {
        "trainer": ranks("trainer"),
        "critic": ranks("critic"),
        "reference": ranks("reference"),
        "proximal": ranks("proximal"),
        "teacher": ranks("teacher"),
        "reward": ranks("reward"),
        "engine": config.engine.total if config.engine.apart else 0,
        "lent": config.engine.lent if config.engine.apart else 0,
        "judge": len(own_judges(config.rewards)) if config.engine.apart else 0,
        "rollout": rollouts,
        "functions": int(config.functions_process),
    }


def cpus_of(config: TrainConfig, role: str) -> int | None:
    """Threads of each worker of a role that is placed; None for one that is not. Engines that are lent have the
    trainer's."""
    role = "trainer" if role == LENT else role
    place = next((place for name, place in config.cluster.place.items() if name == role), None)
    return None if place is None else max(int(place.cpus), 1)


def _with_lent(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """Engines that are lent share the trainer's devices, and its processors."""
    return (*roles, LENT) if "trainer" in roles else roles


def claims_for(kind: str, place: PlaceConfig, count: int, role: Role) -> list[Claim]:
    """Of `count` workers of this kind, in their order. `place`: what `cluster.place` has of the role. Raises
    ConfigError for devices that do not divide among them."""
    try:
        devices = place.each(count)
    except ValueError as error:
        raise ConfigError(f"cluster.place.{role} {error}") from error
    return [Claim(f"{kind}/{number}", devices, place.cpus) for number in range(count)]


def check_used(role: str, claims: Sequence[Claim], more: str = "") -> None:
    """Of workers that compute on one device each. `more`: what has more of them, but for their number. Raises
    ConfigError."""
    if claims and (devices := claims[0].devices) > 1:
        whole = int(devices * len(claims))
        wanted = f"for all of them {more.format(whole)}" if more else "1 for each"
        raise ConfigError(
            f"cluster.place.{role} has {devices:g} devices for each worker, and one computes on one device; use "
            f"{wanted}"
        )


def _team(roles: Sequence[Sequence[Claim]], spread: bool) -> Team:
    """The first workers of each role are together, so are the second ones."""
    most = max(map(len, roles))
    return Team(
        tuple(Bundle(tuple(claims[number] for claims in roles if number < len(claims))) for number in range(most)),
        spread,
    )


def _spreads(config: TrainConfig, roles: Sequence[Role]) -> bool:
    place = config.cluster.place
    return any(place[role].strategy == "spread" for role in roles if role in place)
