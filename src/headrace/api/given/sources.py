"""Where a callable of the caller's is defined: in a file, or by a source of its own that can be written to one.

A source is its own if a new file of it defines the same: the function has no closure, and whatever global name it
uses is a module, something that can be imported, a constant, or a function or class whose source is its own again.
That is looked up, by the names in its compiled code; nothing is run. The source counts only if it compiles to the very
code that the function has, and gives the same defaults and attributes (`api/given/sameness.py`): a cell or a file that
was changed since does not, nor one of several functions that a loop made.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import json
import linecache
import re
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from headrace.api.given.sameness import NotSame, check_class, check_defaults, is_literal, same_code
from headrace.sandbox.places import NEEDS

_ANNOTATIONS = __future__.annotations.compiler_flag
HEAD = "# Given to headrace in Python, and written down so that the run's config.yaml repeats the run."
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class _NotOwn(NotSame):
    """The source defines something else, or not all of it."""


def source_of(thing: object, name: str) -> tuple[str, str] | None:
    """The text of a file that defines the function or class `thing`, and its name there: its own, or `name` for a
    lambda. None unless its source is its own; nor for what is installed."""
    module = getattr(thing, "__module__", "__main__")
    if module != "__main__" and is_installed(getattr(sys.modules.get(module), "__file__", None) or ""):
        return None
    for flags in (_ANNOTATIONS, 0):
        try:
            return _Writer(flags).whole(thing, name)
        except NotSame:
            continue
    return None


def needs(paths: Iterable[str]) -> list[str]:
    """A line for the sandbox, which shows these to the function (`sandbox/places.py`)."""
    named = [str(path) for path in paths]
    return [f"{NEEDS}{json.dumps(named)}"] if named else []


class _Writer:
    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._folders: dict[str, None] = {}
        """To import from, beside what is installed."""
        self._imports: dict[str, None] = {}
        self._constants: dict[str, str] = {}
        self._definitions: dict[str, tuple[object, str]] = {}
        """By name: the thing, and its source."""
        self._names: dict[str, Any] | None = None
        """The global names, which all that is written shares."""

    def whole(self, thing: object, name: str) -> tuple[str, str]:
        """See `source_of`. Raises _NotOwn."""
        name = self._define(thing, name)
        if not self._definitions.keys().isdisjoint([*self._constants, *map(_bound, self._imports)]):
            raise _NotOwn
        lines = [HEAD, *needs(self._folders)]
        if self._flags:
            lines += ["from __future__ import annotations", ""]
        if self._folders:
            lines += ["import sys", "", *(f"sys.path.append({folder!r})" for folder in self._folders), ""]
        lines += [*self._imports, "", *(f"{name} = {text}" for name, text in self._constants.items())]
        lines += [f"\n\n{text.rstrip()}" for _, text in self._definitions.values()]
        return "\n".join(lines) + "\n", name

    def _define(self, thing: object, name: str) -> str:
        """Under which name `thing` is defined."""
        if isinstance(thing, FunctionType):
            text, module = self._function(thing, name)
            name = name if thing.__name__ == "<lambda>" else thing.__name__
            names = thing.__globals__
        elif isinstance(thing, type):
            text, module, names = self._class(thing)
            name = thing.__name__
        else:
            raise _NotOwn
        if self._names is None:
            self._names = names
            self._find_beside(module, names)
        if names is not self._names:
            raise _NotOwn  # two may mean different things by one name
        if name in self._definitions:
            if self._definitions[name][0] is not thing:
                raise _NotOwn
            return name
        if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text))):
            raise _NotOwn  # it is relative to a package
        self._definitions[name] = (thing, "")  # it may use itself
        for used in _globals_of(module):
            self._use(used, names)
        del self._definitions[name]  # what it needs comes first
        self._definitions[name] = (thing, text)
        return name

    def _function(self, function: FunctionType, name: str) -> tuple[str, CodeType]:
        if function.__closure__ or hasattr(function, "__wrapped__") or vars(function):
            raise _NotOwn
        code, names = function.__code__, function.__globals__
        if function.__name__ != code.co_name:
            raise _NotOwn
        for text in _segments(code.co_filename, code.co_firstlineno, code.co_name, name):
            module = self._compiled(text)
            node = ast.parse(text).body[0]
            if isinstance(node, ast.Assign):
                node = node.value  # type: ignore[assignment]
            elif node.decorator_list and names.get(function.__name__) is not function:  # type: ignore[attr-defined]
                continue  # what the decorators were given
            try:
                own = {key: value for key, value in names.items() if key not in (name, function.__name__)}
                check_defaults(function, node, own)  # type: ignore[arg-type]
            except NotSame:
                continue
            if any(same_code(one, code) for one in self._codes(text, code)):
                return text, module
        raise _NotOwn

    def _class(self, cls: type) -> tuple[str, CodeType, dict[str, Any]]:
        functions = [one for one in map(_function_in, vars(cls).values()) if one is not None]
        own = [one for one in functions if one.__qualname__ == f"{cls.__qualname__}.{one.__name__}"]
        own = [one for one in own if one.__module__ == cls.__module__ and not _is_made(one.__code__.co_filename)]
        if not own or cls.__qualname__ != cls.__name__:
            raise _NotOwn
        first, names = own[0].__code__, own[0].__globals__
        for text in _segments(first.co_filename, first.co_firstlineno, cls.__name__, cls.__name__, around=True):
            module = self._compiled(text)
            node = ast.parse(text).body[0]
            assert isinstance(node, ast.ClassDef)
            if node.decorator_list and names.get(cls.__name__) is not cls:
                continue
            for body in self._codes(text, first, cls.__name__):
                try:
                    check_class(cls, node, body, names)
                except NotSame:
                    continue
                return text, module, names
        raise _NotOwn

    def _codes(self, text: str, of: CodeType, name: str | None = None) -> list[CodeType]:
        """What the function or class that is all of `text` compiles to: by itself, as a notebook does, and after the
        imports of its file, since the code for a name depends on whether the file imports it. `of`: a code of its."""
        imports = [
            ast.unparse(node)
            for node in ast.walk(_tree(of.co_filename)[1])
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        after = "\n".join(line for line in imports if "__future__" not in line and "*" not in line)
        found = []
        for module in (self._compiled(text), self._compiled(f"{after}\n{text}")):
            outer = [one for one in module.co_consts if isinstance(one, CodeType)]
            outer = [one for one in outer if one.co_name == (name or of.co_name)]
            found += outer if len(outer) == 1 else []
        return found

    def _find_beside(self, module: CodeType, names: dict[str, Any]) -> None:
        """Modules beside the script are found, as they are by what it imports while it runs."""
        file = names.get("__file__")
        if isinstance(file, str) and Path(file).is_file() and not names.get("__package__"):
            self._folders[str(Path(file).resolve().parent)] = None
        elif file is None and names.get("__name__") == "__main__" and _imports(module):
            self._folders[str(Path.cwd())] = None

    def _compiled(self, text: str) -> CodeType:
        try:
            return compile(text, "<given>", "exec", flags=self._flags, dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise _NotOwn from error

    def _use(self, name: str, names: dict[str, Any]) -> None:
        if name in names:
            self._define_global(name, names[name], names)
        elif name != "__class__" and not hasattr(builtins, name) and name not in ("__name__", "__qualname__"):
            raise _NotOwn

    def _define_global(self, name: str, value: Any, names: dict[str, Any]) -> None:
        if isinstance(value, ModuleType):
            self._import(value, f"import {value.__name__}" + _renamed(value.__name__, name))
        elif (imported := _exported(value)) is not None and vars(imported[0]) is not names:
            module, theirs = imported
            self._import(module, f"from {module.__name__} import {theirs}{_renamed(theirs, name)}")
        elif isinstance(value, FunctionType | type):
            own = self._define(value, name)
            if own != name:
                raise _NotOwn
        elif isinstance(value, re.Pattern):
            self._imports["import re"] = None
            self._constants[name] = f"re.compile({value.pattern!r}, {value.flags})"
        elif is_literal(value):
            self._constants[name] = repr(value)
        else:
            raise _NotOwn

    def _import(self, module: ModuleType, line: str) -> None:
        if module.__name__ == "__main__" or module.__spec__ is None:
            raise _NotOwn
        file = getattr(module, "__file__", None)
        if file is not None and not is_installed(file):
            self._folders[
                str(Path(file).resolve().parents[module.__name__.count(".") + file.endswith("__init__.py")])
            ] = None
        self._imports[line] = None


def _renamed(theirs: str, name: str) -> str:
    return "" if theirs == name else f" as {name}"


def _segments(file: str, line: int, name: str, lambda_name: str, *, around: bool = False) -> Iterator[str]:
    """Texts of what is called `name` and begins at `line` of `file`, decorators included; `around`: of the classes that
    have the line in them. Lambdas are given `lambda_name`."""
    whole, tree = _tree(file)
    lines = whole.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and name == "<lambda>" and node.lineno == line:
            yield f"{lambda_name} = {ast.get_source_segment(whole, node, padded=False)}\n"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            last = node.end_lineno or node.lineno
            is_it = first <= line <= last if around else first == line
            if is_it and isinstance(node, ast.ClassDef) == around:
                yield textwrap.dedent("".join(lines[first - 1 : last]))


def _tree(file: str) -> tuple[str, ast.Module]:
    """The text of a file or a cell, parsed; empty if it is not there any more."""
    linecache.checkcache(file)
    whole = "".join(linecache.getlines(file))
    try:
        return whole, ast.parse(whole)
    except (SyntaxError, ValueError):
        return "", ast.Module([], [])


def _function_in(value: object) -> FunctionType | None:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


def _imports(code: CodeType) -> bool:
    """Whether it imports while it runs."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return any(one.opname == "IMPORT_NAME" for one in dis.get_instructions(code)) or any(map(_imports, inner))


def _bound(line: str) -> str:
    """The name that an import gives."""
    return line.split()[-1].partition(".")[0]


def _globals_of(code: CodeType) -> Iterator[str]:
    """Names that the module's code and what is in it look up globally."""
    stored = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_NAME"}
    for one in dis.get_instructions(code):
        is_name = one.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
        if is_name and not (one.opname == "LOAD_NAME" and one.argval in stored):
            yield one.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _exported(value: object) -> tuple[ModuleType, str] | None:
    """The module that has `value` at its top level, and its name there, if it says where it is from: as functions and
    classes do, and some other objects."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return None
    found = sys.modules.get(module)
    return (found, name) if found is not None and getattr(found, name, None) is value else None


def _is_made(file: str) -> bool:
    """Whether its code was added to a class, as `dataclass` does."""
    return file.startswith("<string>") or is_installed(file)


def is_installed(file: str) -> bool:
    """Whether it belongs to Python or to an installed package."""
    return file.startswith(_INSTALLED)
