"""Validation errors in words: the key, the value given, and the mend."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.config.base import Section
from headrace.config.reading.synonyms import is_of_others, meant_by

_MOST_LEAVES = 5
"""Keys that are told of an unknown section."""
_MOST_SHOWN = 200
"""Characters of a value that are repeated."""
_RARE = {"terms", "judge"}
_WHOLE, _NUMBER, _LIST, _MAPPING = "a whole number is wanted", "a number is wanted", "a list is wanted", "a mapping of "
_WANTED = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "a smaller number is wanted",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number is wanted",
    "bool_type": "true or false is wanted",
    "bool_parsing": "true or false is wanted",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": f"{_MAPPING}keys is wanted",
    "model_type": f"{_MAPPING}keys is wanted",
}
"""Pydantic's types of errors in the words of YAML."""


def explain(kind: type[Section], error: ValidationError, source: str) -> str:
    """One line for each fault, headed by the file."""
    lines = [line for detail in error.errors() for line in _explain_one(kind, detail)]
    head = f"{source}: {lines[0]}" if len(lines) == 1 else f"{source}: {len(lines)} faults"
    return head if len(lines) == 1 else "\n  - ".join([head, *lines])


def known_keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    """The dotted name of every key and section; what stands in a list goes without its place."""
    for name, info in kind.model_fields.items():
        key = prefix + (info.alias or name)
        yield key
        for section in dict.fromkeys(_sections(info.annotation)):
            yield from known_keys(section, key + ".")


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """What the value may be, or have in a list, if there it can be nothing else."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif get_origin(annotation) is tuple:
        yield from (part for part in get_args(annotation) if isinstance(part, type) and issubclass(part, Section))
    else:
        for part in get_args(annotation):
            yield from _sections(part)


def _explain_one(kind: type[Section], detail: ErrorDetails) -> list[str]:
    # <…> is a tag of ours for one of the shapes that a value may have.
    location = [str(part) for part in detail["loc"] if not str(part).startswith("<")]
    key = ".".join(location) or "config"
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return _unknown(kind, location, value)
        case "missing" if isinstance(detail["loc"][-1], int):
            values = ".".join(location[:-1])
            return [f"{values} is {_shown(value)}: too few values; it needs at least {detail['loc'][-1] + 1}"]
        case "missing":
            return [f"missing key {key}: it has no default"]
        case "value_error":
            message = detail["msg"].removeprefix("Value error, ")
            return [message if not location else f"{key}: {message}"]
        case "too_long":
            return [f"{key} is {_shown(value)}: too many values; it takes at most {detail['ctx']['max_length']}"]
        case "invalid_key":
            return [f"a key is {_shown(value)}, which is no text; correct it, or put it in quotes"]
        case "string_type":
            quotes = "" if isinstance(value, Mapping | list | None) else "; put it in quotes"
            return [f"{key} is {_shown(value)}: text is wanted{quotes}"]
        case other:
            wanted = _WANTED.get(other, detail["msg"][0].lower() + detail["msg"][1:])
            return [f"{key} is {_shown(value)}: {wanted}"]


def _shown(value: Any) -> str:
    """As it stands in YAML, as far as one looks at it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _unknown(kind: type[Section], location: list[str], value: Any) -> list[str]:
    """A line for an unknown key; of an unknown section, as other trainers have them, one for each key in it that is
    known here by another name."""
    known = list(known_keys(kind))
    leaves = list(_leaves(location, value))
    if len(leaves) > 1 or leaves[0] != location:
        told = [f"unknown key {'.'.join(leaf)}{_meant(leaf, known)}" for leaf in leaves if _meant(leaf, known)]
        if told:
            return told[:_MOST_LEAVES]
    return [f"unknown key {'.'.join(location)}{_suggestion(location, known)}"]


def _leaves(location: list[str], value: Any) -> Iterator[list[str]]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves([*location, str(name)], below)
    else:
        yield location


def _suggestion(location: list[str], known: list[str]) -> str:
    """Where the key was meant to go: the same name elsewhere or another trainer's word for it, then the nearest
    spelling."""
    name, parent = location[-1], [part for part in location[:-1] if not part.isdigit()]
    if "." in name and ".".join([*parent, name]) in known:
        return f"; in a file write it in its section: {_nested([*parent, *name.split('.')])}"
    if meant := _meant(location, known):
        return meant
    if is_of_others(location):
        return "; this command has no such setting"
    siblings = [key.rsplit(".", 1)[-1] for key in known if key.split(".")[:-1] == parent]
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {'.'.join([*parent, near[0]])}?"
    anywhere = difflib.get_close_matches(name, [key.rsplit(".", 1)[-1] for key in known], n=1, cutoff=0.75)
    if anywhere:
        full = next(key for key in known if key.rsplit(".", 1)[-1] == anywhere[0])
        return f"; did you mean {full}?"
    return f"; known keys here are {', '.join(siblings)}" if siblings else ""


def _nested(path: list[str]) -> str:
    first, *rest = path
    return f"{first}: {{{_nested(rest)}}}" if rest else f"{first}: ..."


def _meant(location: list[str], known: list[str]) -> str:
    """The same name elsewhere, or what others call it; what shares the most sections with it first."""
    name, parent = location[-1], [part for part in location[:-1] if not part.isdigit()]
    moved = tuple(key for key in known if key.rsplit(".", 1)[-1] == name)
    others = meant_by([*parent, name], known, least=2), meant_by([name], known)
    found = _nearer(others[0], parent, known) or moved or _nearer(others[1], parent, known)
    # Terms and judges of a reward have keys of the same names as what is meant as a rule.
    ranked = sorted(found, key=lambda key: (-_shared(parent, key.split(".")), not _RARE.isdisjoint(key.split("."))))
    return f"; did you mean {' or '.join(ranked[:3])}?" if ranked else ""


def _nearer(keys: tuple[str, ...], parent: list[str], known: list[str]) -> tuple[str, ...]:
    """Of each of `keys` that which is called the same in the section at hand, if there is one."""

    def nearest(key: str) -> str:
        alike = [other for other in known if other.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
        best = max(alike, key=lambda other: _shared(parent, other.split(".")))
        return best if _shared(parent, best.split(".")) > _shared(parent, key.split(".")) else key

    return tuple(dict.fromkeys(map(nearest, keys)))


def _shared(one: list[str], other: list[str]) -> int:
    """Sections that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
