"""Whether weights belong to the config that they lie beside: told in words of tensors, by name and shape."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError
from headrace.models.weight_files import StoredTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger(__name__)
_SHOWN = 3


def check_headers(path: str, outline: PreTrainedModel, stored: Mapping[str, StoredTensor]) -> None:
    """Compare a model without weights with the headers of its files, before anything is loaded.

    Only tensors of one kind, that is of the same name but for the numbers in it, are compared: some architectures store
    their weights under names of an older version, or in other pieces, and transformers puts them together when it
    loads them. Raises ConfigError.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in outline.state_dict().items()}
    kinds = {_kind(name) for name in wanted} & {_kind(name) for name in stored}
    tied = getattr(outline, "all_tied_weights_keys", None) or {}
    may_miss = _any_of(getattr(outline, "_keys_to_ignore_on_load_missing", None))
    may_be_left = _any_of(getattr(outline, "_keys_to_ignore_on_load_unexpected", None))
    missing = [
        name
        for name in wanted
        if _kind(name) in kinds and name not in stored and name not in tied and not may_miss(name)
    ]
    unused = [name for name in stored if _kind(name) in kinds and name not in wanted and not may_be_left(name)]
    # By number of elements: one that is stored transposed fits.
    misshapen = {
        name: (stored[name].shape, shape)
        for name, shape in wanted.items()
        if name in stored and stored[name].size != StoredTensor(shape, "").size
    }
    _refuse(path, missing, unused, misshapen)


def check_report(
    path: str, model: PreTrainedModel, report: Mapping[str, Any], *, head: Callable[[str], bool] = lambda name: False
) -> None:
    """Look at what transformers says of the weights that it loaded. `head`: names that may be missing or left over, as
    those of an output layer that is replaced. Raises ConfigError."""
    missing = sorted(name for name in report["missing_keys"] if not head(name))
    misshapen = {name: (tuple(found), tuple(wanted)) for name, found, wanted in report["mismatched_keys"]}
    left = sorted(name for name in report["unexpected_keys"] if not head(name))
    kinds = {_kind(name) for name in model.state_dict()}
    _refuse(path, missing, [name for name in left if _kind(name) in kinds], misshapen)
    if report.get("error_msgs"):
        raise ConfigError(f"the weights of model {path!r} cannot be loaded: {report['error_msgs'][0]}")
    if left:
        _LOG.warning(
            "the weights of model %r hold %d tensors that no part of a causal language model takes (%s): they are left "
            "out, here and in what is saved",
            path,
            len(left),
            _some(left),
        )


def _refuse(
    path: str,
    missing: Collection[str],
    unused: Collection[str],
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    mend = "mend config.json, or give the weights that belong to it"
    if misshapen:
        name, (found, wanted) = next(iter(misshapen.items()))
        more = f" (and so with {len(misshapen) - 1} more)" if len(misshapen) > 1 else ""
        raise ConfigError(
            f"the weights of model {path!r} have other shapes than its config.json asks for: {name} is {list(found)} "
            f"and should be {list(wanted)}{more}; {mend}"
        )
    if missing:
        raise ConfigError(
            f"the weights of model {path!r} lack {len(missing)} tensors that its config.json asks for "
            f"({_some(missing)}); {mend}"
        )
    if unused:
        raise ConfigError(
            f"the weights of model {path!r} hold {len(unused)} tensors that its config.json does not use "
            f"({_some(unused)}): it describes a smaller model; {mend}"
        )


def _kind(name: str) -> str:
    """`model.layers.2.mlp` -> `model.layers.*.mlp`."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _any_of(patterns: Iterable[str] | None) -> Callable[[str], bool]:
    """Whether one of the architecture's own exceptions is for a name."""
    compiled = [re.compile(pattern) for pattern in patterns or ()]
    return lambda name: any(pattern.search(name) for pattern in compiled)


def _some(names: Collection[str]) -> str:
    return ", ".join(list(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
