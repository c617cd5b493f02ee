"""The user's own classes and functions, found by `path.py:name` or `module:name`.

The process that scores rewards starts through this file, and is forked for each of them: so it imports the standard
library alone, and little of that (what is mapped is copied by each fork).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace.rollout.failures import describe_exception


def load_function(
    spec: str,
    key: str,
    arguments: tuple[str, ...],
    optional: tuple[str, ...] = (),
    keywords: tuple[str, ...] = (),
    *,
    awaited: bool = False,
) -> Callable[..., Any]:
    """The callable that `spec` names, checked to take `arguments` by position, all of `keywords` by name, and those of
    the keywords `optional` that it accepts; and to be no coroutine function, unless what it returns is `awaited`.

    `key` is the config key that holds `spec`, for errors. Raises ConfigError.
    """
    function = load_named(spec, key)
    if not awaited and any(map(inspect.iscoroutinefunction, (function, getattr(type(function), "__call__", None)))):  # noqa: B004
        raise _config_error(f"{key} is {spec!r}, which is async, and is called without waiting; write a plain def")
    accepted = tuple(name for name in optional if accepts_keyword(function, name))
    _check_call(function, arguments, f"{key} is {spec!r}, which", (*keywords, *accepted))
    return function


def load_named(spec: str, key: str) -> Callable[..., Any]:
    """The callable that `spec` names, whatever it takes. Raises ConfigError."""
    function = _load(spec, key)
    if not callable(function):
        raise _config_error(f"{key} is {spec!r}, which is a {type(function).__name__}; name a function")
    return function


def load_class(spec: str, key: str, methods: dict[str, tuple[str, ...]]) -> type[Any]:
    """The class that `spec` names, checked to be made without arguments and to have `methods` with these arguments.

    `key` is the config key that holds `spec`, for errors. Raises ConfigError.
    """
    cls = _load(spec, key)
    if not isinstance(cls, type):
        raise _config_error(f"{key} is {spec!r}, which is a {type(cls).__name__}; name a class")
    _check_call(cls, (), f"{key} is {spec!r}, whose constructor")
    for name, arguments in methods.items():
        method = getattr(cls, name, None)
        if not callable(method):
            raise _config_error(
                f"{key} is {spec!r}, which has no method {name}; write {name}({', '.join(('self', *arguments))})"
            )
        _check_call(method, ("self", *arguments), f"{key} is {spec!r}, whose method {name}")
    return cls


def file_of(spec: str) -> str | None:
    """The file that `path.py:name` or `module:name` was loaded from, as tracebacks name it; None if it was not."""
    place = spec.rpartition(":")[0]
    if place.endswith(".py"):
        return os.path.realpath(place)
    return getattr(sys.modules.get(place), "__file__", None)


def accepts_keyword(function: Callable[..., Any], name: str) -> bool:
    """Whether `function` can be called with keyword `name`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # callables of C code may have no signature
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(p.kind is p.VAR_KEYWORD or (p.name == name and p.kind in named) for p in parameters)


def _check_call(
    function: Callable[..., Any], arguments: tuple[str, ...], subject: str, keywords: tuple[str, ...] = ()
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        wanted = f"({', '.join([*arguments, *(f'{name}=...' for name in keywords)])})"
        raise _config_error(
            f"{subject} has the signature {signature}, but is called as {wanted}: {error}; change its parameters"
        ) from error


def _load(spec: str, key: str) -> Any:
    place, colon, name = spec.rpartition(":")
    if not (colon and place and name):
        raise _config_error(f"{key} is {spec!r}; write path.py:name or module:name")
    module = _module_of_file(place, spec, key) if place.endswith(".py") else _module(place, spec, key)
    try:
        return getattr(module, name)
    except AttributeError:
        known = [other for other in vars(module) if not other.startswith("_")]
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        mend = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'no names'}"
        raise _config_error(f"{key} is {spec!r}, but {place} has no {name!r}; {mend}") from None


def _module(name: str, spec: str, key: str) -> ModuleType:
    _make_importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _config_error(f"{key} is {spec!r}, but {name} does not import: {describe_exception(error)}") from error


def _module_of_file(path: str, spec: str, key: str) -> ModuleType:
    file = os.path.realpath(path)
    if not os.path.isfile(file):
        raise _config_error(f"{key} is {spec!r}, but there is no file {path}; paths are relative to {os.getcwd()}")
    stem = os.path.basename(file).removesuffix(".py")
    name = f"{stem}_{zlib.crc32(os.fsencode(file)):08x}"
    if name in sys.modules:  # two names out of one file share its module
        return sys.modules[name]
    _make_importable(os.path.dirname(file))
    module_spec = importlib.util.spec_from_file_location(name, file)
    if module_spec is None or module_spec.loader is None:
        raise _config_error(f"{key} is {spec!r}, but {path} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses look their module up while it runs
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _config_error(f"{key} is {spec!r}, but {path} does not import: {describe_exception(error)}") from error
    return module


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that a user's `types.py` does not hide the standard library's


def _config_error(message: str) -> Exception:
    from headrace.config.errors import ConfigError  # its package takes 0.2 s to import: only when it is needed

    return ConfigError(message)
