"""Overrides of `cluster.place`, where a role has several names, and a place has a short form."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from headrace.config.cluster import by_own_names, role_of

_KEY = "cluster.place"
_DEVICES = ("devices", "devices_together")
"""Of which the one that is given stands in the place of the other."""


def is_of_places(key: str) -> bool:
    """Whether an override of `key`, no place in a list, may say where workers are."""
    return key in ("cluster", _KEY) or (key.startswith(f"{_KEY}.") and "[" not in key)


def merge_places(config: DictConfig, override: DictConfig) -> None:
    """Merge `override` into `config`, which has what a file says: role by role, whatever each of them calls it, and in
    short or not. A role keeps the file's name for it, by which the file may refer to it. Raises ValueError, and what
    OmegaConf raises."""
    there, given = OmegaConf.select(config, _KEY), OmegaConf.select(override, _KEY)
    if isinstance(there, DictConfig) and isinstance(given, DictConfig):
        _write_out(there)
        _write_out(given)
        names = {role_of(name, None): name for name in there}
        for name in list(given):
            if (own := names.get(role_of(name, None))) is not None:
                given[own] = given.pop(name)
                _make_room(there, given, own)
    config.merge_with(override)


def _write_out(places: DictConfig) -> None:
    """`[1, 4]` as the keys that it is short for. What is no place stays, to be told as that. Raises ValueError."""
    plain = _plain(places)
    by_own_names(plain)
    for name, place in plain.items():
        if isinstance(place, list) and len(place) == 2 and place[0] == 1:
            role = role_of(name, place)
            del places[name]
            places[name if role == role_of(name, None) else role] = {"devices_together": place[1]}


def _make_room(there: DictConfig, given: DictConfig, name: Any) -> None:
    """In the file's place of this name, for what goes before it."""
    if isinstance(there[name], ListConfig):
        del given[name]
    elif not isinstance(there[name], DictConfig) or not isinstance(given[name], DictConfig):
        del there[name]
    elif any(key in given[name] for key in _DEVICES):
        there[name] = there[name]  # a copy, where it refers to another role's
        for key in _DEVICES:
            there[name].pop(key, None)


def _plain(places: DictConfig) -> dict[Any, Any]:
    found = OmegaConf.to_container(places, resolve=False)
    assert isinstance(found, dict)
    return found
