"""The user's own classes and functions, found by `path.py:name` or `module:name`, or given as objects.

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
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from headrace.plugins.raised import describe_exception

Given = Mapping[str, Any]
"""Objects that were given in Python, by the text that stands for each in the config."""
NOTHING_GIVEN: Given = MappingProxyType({})
IN_MEMORY = "<memory>"
"""In the place of a file or module: what is named is in the caller's memory alone."""


def load_function(
    spec: str,
    key: str,
    arguments: tuple[str, ...],
    optional: tuple[str, ...] = (),
    keywords: tuple[str, ...] = (),
    *,
    awaited: bool = False,
    given: Given = NOTHING_GIVEN,
) -> Callable[..., Any]:
    """The callable that `spec` names, checked to take `arguments` by position, all of `keywords` by name, and those of
    the keywords `optional` that it accepts; and to be no coroutine function, unless what it returns is `awaited`.

    `key` is the config key that holds `spec`, for errors. Raises ConfigError.
    """
    function = load_named(spec, key, given)
    if not awaited and any(map(inspect.iscoroutinefunction, (function, getattr(type(function), "__call__", None)))):  # noqa: B004
        raise _config_error(f"{key} is {spec!r}, which is async, and is called without waiting; write a plain def")
    accepted = tuple(name for name in optional if accepts_keyword(function, name))
    _check_call(function, arguments, f"{key} is {spec!r}, which", (*keywords, *accepted))
    return function


def load_named(spec: str, key: str, given: Given = NOTHING_GIVEN) -> Callable[..., Any]:
    """The callable that `spec` names, whatever it takes. Raises ConfigError."""
    function = _load(spec, key, given)
    if not callable(function):
        raise _config_error(f"{key} is {spec!r}, which is a {type(function).__name__}; name a function")
    return function


def load_class(
    spec: str, key: str, methods: Mapping[str, tuple[str, ...]], given: Given = NOTHING_GIVEN, *, shared: bool = False
) -> Callable[[], Any]:
    """The class that `spec` names, checked to be made without arguments and to have `methods` with these arguments. In
    its place there may be given a function that makes such objects, or if they are `shared`, one object.

    `key` is the config key that holds `spec`, for errors. Raises ConfigError.
    """
    cls = _load(spec, key, given)
    if not isinstance(cls, type):
        if spec in given and callable(cls):
            _check_call(cls, (), f"{key} is {spec!r}, which")
            return cls
        if spec in given and shared:
            _check_methods(cls, methods, f"{key} is {spec!r}, which")
            return lambda: cls
        mend = "name a class" if spec not in given else "give the class, or a function that makes one for each episode"
        raise _config_error(f"{key} is {spec!r}, which is a {type(cls).__name__}; {mend}")
    _check_call(cls, (), f"{key} is {spec!r}, whose constructor")
    _check_methods(cls, methods, f"{key} is {spec!r}, which")
    return cls


def _check_methods(thing: Any, methods: Mapping[str, tuple[str, ...]], subject: str) -> None:
    """Of a class or an object."""
    own = ("self",) if isinstance(thing, type) else ()
    for name, arguments in methods.items():
        method = getattr(thing, name, None)
        if not callable(method):
            raise _config_error(f"{subject} has no method {name}; write {name}({', '.join(('self', *arguments))})")
        _check_call(method, (*own, *arguments), f"{subject.removesuffix(', which')}, whose method {name}")


def file_of(spec: str, given: Given = NOTHING_GIVEN) -> str | None:
    """The file that `path.py:name` or `module:name` was loaded from, or what was given is defined in, as tracebacks
    name it; None if it was not loaded."""
    if spec in given:
        return _file_of_object(given[spec])
    place = spec.rpartition(":")[0]
    if place.endswith(".py"):
        return os.path.realpath(os.path.expanduser(place))
    return getattr(sys.modules.get(place), "__file__", None)


def _file_of_object(thing: Any) -> str | None:
    """Of a function, a class, or an object of one."""
    if inspect.isroutine(thing):
        code = getattr(inspect.unwrap(thing), "__code__", None)
        return None if code is None else str(code.co_filename)
    cls = thing if isinstance(thing, type) else type(thing)
    codes = [code for each in vars(cls).values() if (code := getattr(each, "__code__", None)) is not None]
    return str(codes[0].co_filename) if codes else None


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


def _load(spec: str, key: str, given: Given) -> Any:
    if spec in given:
        return given[spec]
    place, colon, name = spec.rpartition(":")
    if place == IN_MEMORY:
        raise _config_error(
            f"{key} is {spec!r}: {name} was given in Python, and no file defines it; give it again, by headrace.train, "
            "or name a function in a file"
        )
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of a Rust extension that panics, say
        raise _config_error(f"{key} is {spec!r}, but {name} does not import: {describe_exception(error)}") from error


def _module_of_file(path: str, spec: str, key: str) -> ModuleType:
    file = os.path.realpath(os.path.expanduser(path))
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of a Rust extension that panics, say
        del sys.modules[name]
        raise _config_error(f"{key} is {spec!r}, but {path} does not import: {describe_exception(error)}") from error
    return module


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that a user's `types.py` does not hide the standard library's


def _config_error(message: str) -> Exception:
    from headrace.config.errors import ConfigError  # its package takes 0.2 s to import: only when it is needed

    return ConfigError(message)
