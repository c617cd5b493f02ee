"""Which nodes and devices of a Ray cluster a run's workers are on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from headrace.config.base import Section
from headrace.config.errors import ConfigError

Role = Literal[
    "trainer",
    "critic",
    "reference",
    "proximal",
    "teacher",
    "reward",
    "engine",
    "lent",
    "judge",
    "rollout",
    "functions",
]
ROLES: tuple[Role, ...] = get_args(Role)
LENT: Role = "lent"
_ALSO = {"actor": "trainer", "actor_fwd": "proximal", "advantages": "functions"}
"""What roles are called elsewhere."""
_ENGINES = "rollout"
"""What engines are called where a role is given as [services, devices]."""

_NO_DEVICES = ("CPU", "memory", "object_store_memory")


class PlaceConfig(Section):
    """What each worker of a role asks the cluster for. Short: `[1, 4]`, one service with 4 devices in all."""

    devices: float = Field(default=0.0, ge=0)
    """Of each worker: whole ones, or a part of one, which it shares with whoever asks for the rest."""
    devices_together: int | None = Field(default=None, ge=0)
    """Of all workers of the role, in the place of `devices`: each has as many as another."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors of each worker; it computes with so many threads."""
    strategy: Literal["pack", "spread"] = "pack"
    """`pack`: on as few nodes as can be. `spread`: on as many."""

    @model_validator(mode="before")
    @classmethod
    def _of_pair(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            return given
        if len(given) != 2 or not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
            raise ValueError(f"{given!r} is no place; write [1, DEVICES], or {{devices: N, cpus: N}}")
        services, devices = given
        if services != 1:
            raise ValueError(
                f"{given!r} asks for {services} services, and a role is one; use [1, {devices}], and say how many "
                "workers it has by engine.replicas, trainer.layout or rollout.workers"
            )
        return {"devices_together": devices}

    @model_validator(mode="after")
    def _whole_or_part(self) -> Self:
        if self.devices > 1 and self.devices != int(self.devices):
            raise ValueError(f"devices is {self.devices:g}; use a whole number, or a part below 1")
        if self.devices and self.devices_together is not None:
            raise ValueError("devices and devices_together are both given; drop one")
        return self

    def each(self, workers: int) -> float:
        """Devices of each of so many workers. Raises ValueError."""
        if self.devices_together is None:
            return self.devices
        if self.devices_together % workers and workers % max(self.devices_together, 1):
            raise ValueError(
                f"has {self.devices_together} devices for {workers} workers, which share them unevenly; use "
                f"{workers}, or a multiple of it"
            )
        return self.devices_together / workers


def _is_a_device(given: str) -> str:
    if given in _NO_DEVICES:
        raise ValueError(
            f"device is {given}, which Ray counts by itself, and no device; use GPU, or a resource by which nodes "
            "were started (processors: cpus of cluster.place)"
        )
    return given


Device = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$"), AfterValidator(_is_a_device)]
"""Of Ray."""


class ClusterConfig(Section):
    """With `runtime.kind: ray`. Workers of roles that are named nowhere here are on the node where the command is, and
    ask for nothing."""

    place: dict[Role, PlaceConfig] = Field(default={})
    """By role, as `engine: {devices: 1, cpus: 4, strategy: spread}`."""
    colocate: Literal["all"] | tuple[tuple[Role, ...], ...] = ()
    """Roles that share devices, as `[[trainer, reference], [critic, reward]]`, or `all`: the first workers of each are
    on the same node and the same device, so are the second ones. They share the most devices that one of them asks
    for, and each has its own processors."""
    device: Device = "GPU"
    """What Ray counts as devices: `GPU`, or a resource by which nodes were started, as `slot` of `ray start
    --resources '{"slot": 4}'`."""
    local_devices: int = Field(default=0, ge=0, le=1024)
    """Logical devices, where `device` is not `GPU`, of a Ray that is started for the run."""
    room_deadline_s: float = Field(default=300.0, gt=0)
    """How long a worker whose node is lost waits for room on another one."""

    @field_validator("place", mode="before")
    @classmethod
    def _roles_as_elsewhere(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return by_own_names(given)

    @field_validator("colocate", mode="before")
    @classmethod
    def _sets_as_elsewhere(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            return given
        return [
            [_ALSO.get(name, name) if isinstance(name, str) else name for name in each]
            if isinstance(each, list | tuple)
            else each
            for each in given
        ]

    @model_validator(mode="after")
    def _lent_are_with_the_trainer(self) -> Self:
        if LENT in self.place or any(LENT in each for each in self.sets):
            raise ValueError("engines that are lent (engine.lent) are where the trainer is; place and colocate that")
        return self

    @model_validator(mode="after")
    def _sets_are_apart(self) -> Self:
        seen: list[str] = []
        for each in self.sets:
            if len(each) < 2:
                raise ValueError(f"colocate has the set {[*each]}, and one role shares with nobody; name two or more")
            if twice := [role for role in each if role in seen or each.count(role) > 1]:
                raise ValueError(f"colocate names {twice[0]} twice; a role is in one set")
            seen += each
        strategies = {role: place.strategy for role, place in self.place.items()}
        for each in (ROLES,) if self.colocate == "all" else self.sets:
            if len({strategies[role] for role in each if role in strategies}) > 1:
                raise ValueError(
                    f"{', '.join(role for role in each if role in strategies)} are colocated, and not all "
                    "have the same strategy; give them one"
                )
            for role in each:
                if role in self.place and self.place[role].devices > 1:
                    raise ValueError(f"place.{role} {shares_too_many(self.place[role].devices)}")
        return self

    @property
    def sets(self) -> tuple[tuple[Role, ...], ...]:
        """`colocate`, as roles; none for `all`."""
        return () if self.colocate == "all" else self.colocate

    @property
    def is_given(self) -> bool:
        return bool(self.place or self.colocate)


class RanksClusterConfig(Section):
    """With `runtime.kind: ray`. Unless they are placed, ranks are on the node where the command is, and ask for
    nothing."""

    place: dict[Literal["trainer"], PlaceConfig] = Field(default={})
    """Of the ranks, as `trainer: {devices: 1, cpus: 4, strategy: spread}`."""
    device: Device = "GPU"
    """What Ray counts as devices: `GPU`, or a resource by which nodes were started, as `slot` of `ray start
    --resources '{"slot": 4}'`."""
    local_devices: int = Field(default=0, ge=0, le=1024)
    """Logical devices, where `device` is not `GPU`, of a Ray that is started for the run."""


def logical_devices(cluster: ClusterConfig | RanksClusterConfig) -> dict[str, int]:
    """Those of a Ray that is started for the run, by what it counts them as; none where it has none."""
    return {cluster.device: cluster.local_devices} if cluster.local_devices else {}


def check_local_devices(cluster: ClusterConfig | RanksClusterConfig, address: str | None) -> None:
    """`address`: of a Ray that is joined. Raises ValueError with the mend."""
    if cluster.local_devices and (cluster.device == "GPU" or address is not None):
        raise ValueError(
            f"cluster.local_devices is {cluster.local_devices}, which is of logical devices of a Ray that is "
            "started for the run; set cluster.device to a name of its own, without runtime.address, or leave it out"
        )


def gives_gpu(cluster: ClusterConfig | RanksClusterConfig, role: str) -> bool:
    """Whether each worker of the role has a GPU, or a part of one, and sees no other. Engines that are lent have the
    trainer's."""
    role = "trainer" if role == LENT else role
    place = next((place for name, place in cluster.place.items() if name == role), None)
    return cluster.device == "GPU" and place is not None and bool(place.devices or place.devices_together)


def shares_too_many(devices: float) -> str:
    """What is wrong with so many of each worker of a colocated role, where `devices_together` comes to them as well."""
    return (
        f"has {devices:g} devices for each worker, and one that is colocated shares one device at most; use 1 or less "
        "for each, or leave the role out of colocate"
    )


def resource_overrides(text: str | None) -> list[str]:
    """What `--resource` says, as overrides of a config. Raises ConfigError."""
    if text is None:
        return []
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("it is no mapping of roles")
        cluster = ClusterConfig(place=given)
    except ValueError as error:
        words = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"--resource is {text!r}: {words}; write it as " """'{"actor": [1, 2], "rollout": [1, 4]}'"""
        ) from error
    places = {role: place.model_dump(exclude_unset=True) for role, place in cluster.place.items()}
    return [f"cluster.place.{role}={json.dumps(place or {'devices': 0})}" for role, place in places.items()]


def role_of(name: Any, place: Any) -> Any:
    """Whose place it is that somebody calls `name`."""
    return "engine" if name == _ENGINES and isinstance(place, list | tuple) else _ALSO.get(name, name)


def by_own_names(given: Mapping[Any, Any]) -> dict[Any, Any]:
    """Places by role. Raises ValueError."""
    made: dict[Any, Any] = {}
    for name, place in given.items():
        role = role_of(name, place)
        if role in made:
            names = [each for each, other in given.items() if role_of(each, other) == role]
            raise ValueError(f"{role} is given twice, as {' and '.join(map(str, names))}; drop one")
        made[role] = place
    return made
