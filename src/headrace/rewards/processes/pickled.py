"""Functions that no file defines, on their way from the run to the processes that score.

The one place where code is serialised. It goes through the pipe from the run to a process that the run has started, and
nowhere else: never to disk, never from a process to the run, never over a network.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from headrace.plugins.named import IN_MEMORY, Given

_MOST_MIB = 512
"""More than that is a model or a dataset, which belongs into the function, or into a file."""


def packed(given: Given, functions: Sequence[str]) -> dict[str, Any] | None:
    """Those of `functions`, texts of the config, that were given and are in no file; None if none is.

    Raises ValueError with a message for the user.
    """
    own = {spec: given[spec] for spec in functions if spec in given and spec.startswith(f"{IN_MEMORY}:")}
    if not own:
        return None
    return {
        "objects": {spec: base64.b64encode(_pickle(spec, thing)).decode() for spec, thing in own.items()},
        "folders": [os.path.abspath(folder) for folder in sys.path],
    }


def _pickle(spec: str, thing: object) -> bytes:
    import cloudpickle

    name = spec.partition(":")[2]
    own = _own_module(thing)
    try:
        if own is not None:  # as it is here: its file may define another by now
            cloudpickle.register_pickle_by_value(own)
        data: bytes = cloudpickle.dumps(thing)
    except Exception as error:
        raise ValueError(
            f"the reward {name} cannot be sent to another process: {type(error).__name__}: {error}; make what it holds "
            "inside of the function, or set reward.trusted, which calls it in this process"
        ) from error
    finally:
        if own is not None:
            cloudpickle.unregister_pickle_by_value(own)
    if len(data) > _MOST_MIB << 20:
        raise ValueError(
            f"the reward {name} is {len(data) >> 20:,} MiB with all that it holds, and {_MOST_MIB} MiB is the most "
            "that is sent to another process; load it inside of the function, or set reward.trusted, which calls it in "
            "this process"
        )
    return data


def _own_module(thing: object) -> ModuleType | None:
    """The user's module that defines the function, class or object, unless it is the script that runs."""
    import sysconfig

    named = thing if isinstance(thing, FunctionType | type) else type(thing)
    module = sys.modules.get(named.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__" or module.__name__.startswith("headrace."):
        return None
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return None if file.startswith(installed) else module


def unpacked(message: Mapping[str, Any]) -> Given:
    """What `packed` packed, in a process that scores. Raises ValueError with a message for the user."""
    import pickle

    for folder in message["folders"]:
        if folder not in sys.path:
            sys.path.append(folder)
    given = {}
    for spec, text in message["objects"].items():
        try:
            given[spec] = pickle.loads(base64.b64decode(text))
        except Exception as error:
            name = spec.partition(":")[2]
            raise ValueError(
                f"the reward {name} cannot be made in another process: {type(error).__name__}: {error}; what it uses "
                "must be importable there, or set reward.trusted, which calls it in this process"
            ) from error
    return given
