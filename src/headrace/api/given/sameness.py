"""Whether the source of a function or class, loaded afresh, gives what is there: its code, defaults and attributes.

Values are told from the syntax, and nothing is run. What cannot be told counts as another.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

_SIMPLE = (int, float, str, bytes, bool, type(None))
_MOST = 1 << 64
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.BitOr: operator.or_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR
_FLAGS |= inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OF_EVERY_CLASS = {
    *("__module__", "__qualname__", "__doc__", "__annotations__", "__firstlineno__", "__static_attributes__"),
    *("__classcell__", "_abc_impl", "__abstractmethods__"),
}
_OF_DATACLASSES = {
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__init__", "__repr__", "__eq__", "__hash__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__", "__replace__"),
}
_IMPLIED = {"__new__": staticmethod, "__init_subclass__": classmethod, "__class_getitem__": classmethod}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotSame(Exception):
    """The source gives something else, or nobody can say."""


class _NotTold(NotSame):
    """Nobody can say."""


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether both do the same, wherever they stand."""

    def told(code: CodeType) -> tuple[Any, ...]:
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        arguments = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & _FLAGS)
        return code.co_code, names, arguments, len(code.co_consts), getattr(code, "co_exceptiontable", b"")

    return told(one) == told(other) and all(map(_same_constant, one.co_consts, other.co_consts))


def _same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return same_code(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


def is_literal(value: object) -> bool:
    """Whether its text in Python is all of it."""
    if type(value) in _SIMPLE:
        return not isinstance(value, float) or math.isfinite(value)
    if type(value) in (tuple, list, set, frozenset):
        return all(map(is_literal, value))  # type: ignore[call-overload]
    return type(value) is dict and all(is_literal(one) for pair in value.items() for one in pair)


def check_defaults(function: FunctionType, node: _Function | ast.Lambda, names: Mapping[str, Any]) -> None:
    """Raises NotSame unless the defaults of `function` are what those of its source are, where `names` are known."""
    arguments = node.args
    given = function.__defaults__ or ()
    if len(given) != len(arguments.defaults):
        raise NotSame
    for value, text in zip(given, arguments.defaults, strict=True):
        _check(value, text, names)
    keywords = dict(function.__kwdefaults__ or {})
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            if argument.arg not in keywords:
                raise NotSame
            _check(keywords.pop(argument.arg), default, names)
    if keywords:
        raise NotSame


def check_fresh(thing: FunctionType | type, tree: ast.Module, code: CodeType, names: Mapping[str, Any]) -> None:
    """Raises NotSame if `thing` is seen not to be what its file defines at its top level: code, defaults, attributes,
    and constants of the file that it uses. `tree` and `code`: the file's; `names`: of the module, as they are now."""
    nodes = [one for one in tree.body if getattr(one, "name", None) == thing.__name__]
    inner = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == thing.__name__]
    if not len(nodes) == len(inner) == 1:
        raise NotSame
    (node,) = nodes
    if isinstance(node, ast.ClassDef):
        methods = [one for one in inner[0].co_consts if isinstance(one, CodeType)]
        for attribute, value in vars(thing).items():
            _check_attribute(thing, attribute, value, node, methods, names)
    else:
        function = inspect.unwrap(thing)
        if not isinstance(function, FunctionType) or not same_code(function.__code__, inner[0]):
            raise NotSame
        check_defaults(function, node, names)  # type: ignore[arg-type]
    used = _names_in(inner[0], {one.co_name: one for one in code.co_consts if isinstance(one, CodeType)})
    bound = [_name_of(one) for one in tree.body]
    for statement in tree.body:
        own, text = _name_of(statement), getattr(statement, "value", None)
        if own in used and bound.count(own) == 1 and text is not None:
            _check_if_told(names.get(own), text, {key: value for key, value in names.items() if key != own})


def _check_attribute(
    cls: FunctionType | type,
    name: str,
    value: object,
    node: ast.ClassDef,
    codes: list[CodeType],
    names: Mapping[str, Any],
) -> None:
    """Of a class in a file that is checked: what cannot be told is let be."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    inner = inspect.unwrap(value) if callable(value) else value
    if isinstance(inner, FunctionType) and inner.__module__ == cls.__module__ and not _is_made(inner):
        if not any(same_code(inner.__code__, code) for code in codes if code.co_name == name):
            raise NotSame
        return
    found = [one for one in node.body if _name_of(one) == name and getattr(one, "value", None) is not None]
    if len(found) == 1:
        own = {key: one for key, one in vars(cls).items() if key != name}
        _check_if_told(value, found[0].value, {**names, **own})  # type: ignore[attr-defined]
    elif not found and is_literal(value) and not name.startswith("__"):
        raise NotSame


def _is_made(function: FunctionType) -> bool:
    return function.__code__.co_filename in ("<string>", dataclasses.__file__)


def _check_if_told(value: object, text: ast.expr, names: Mapping[str, Any]) -> None:
    try:
        _check(value, text, names)
    except _NotTold:
        return


def _names_in(code: CodeType, others: Mapping[str, CodeType]) -> set[str]:
    """What the code and those of `others` that it names may look up."""
    found: set[str] = set()
    left = [code]
    while left:
        one = left.pop()
        left += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
        left += [others[name] for name in one.co_names if name in others and name not in found]
        found.update(one.co_names)
    return found


def check_class(cls: type, node: ast.ClassDef, code: CodeType, names: Mapping[str, Any]) -> None:
    """Raises NotSame unless all that `cls` has is what its source gives, where `names` are known. `code`: what the body
    of `node` compiles to."""
    if node.keywords or [_value(base, names) for base in node.bases] != [b for b in cls.__bases__ if b is not object]:
        raise NotSame
    body = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    bound = [name for one in body if (name := _name_of(one)) is not None]
    inside = {name: value for name, value in names.items() if name not in (*bound, cls.__name__)}
    left = dict(vars(cls))
    functions: dict[str, list[_Function]] = {}
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.setdefault(statement.name, []).append(statement)
            case ast.Assign(targets=[ast.Name(name)], value=text) | ast.AnnAssign(target=ast.Name(name), value=text):
                if text is not None:
                    if name not in left or bound.count(name) > 1:
                        raise NotSame
                    inside[name] = left.pop(name)
                    _check(inside[name], text, {key: one for key, one in inside.items() if key != name})
            case ast.Pass():
                pass
            case _:
                raise NotSame
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    for name, nodes in functions.items():
        if name not in left or bound.count(name) != len(nodes):
            raise NotSame
        codes = [one for one in inner if one.co_name == name]
        _check_methods(left.pop(name), name, nodes, codes, inside)
    for name, value in left.items():
        if not _comes_by_itself(cls, name, value):
            raise NotSame


def _name_of(statement: ast.stmt) -> str | None:
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
            return str(name)
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
            return str(name)
    return None


def _check_methods(
    value: object, name: str, nodes: list[_Function], codes: list[CodeType], names: Mapping[str, Any]
) -> None:
    """`value`: what the class has as `name`; `nodes`: the definitions of it, in order, and `codes` what they compile
    to."""
    functions: list[Any]
    if isinstance(value, property):
        functions = [one for one in (value.fget, value.fset, value.fdel) if one is not None]
        functions.sort(key=lambda one: one.__code__.co_firstlineno if isinstance(one, FunctionType) else 0)
        wanted = ["property", *(f"{name}.{'setter' if one is value.fset else 'deleter'}" for one in functions[1:])]
    else:
        functions = [value.__func__ if isinstance(value, staticmethod | classmethod) else value]
        kind = type(value)
        wanted = [kind.__name__ if kind in (staticmethod, classmethod) and _IMPLIED.get(name) is not kind else ""]
    if not len(functions) == len(nodes) == len(codes):
        raise NotSame
    for function, node, code, kind_of in zip(functions, nodes, codes, wanted, strict=True):
        decorators = [text for one in node.decorator_list if (text := ast.unparse(one)).split(".")[-1] != _ABSTRACT]
        if decorators != ([kind_of] if kind_of else []) or not isinstance(function, FunctionType):
            raise NotSame
        if set(vars(function)) - {"__isabstractmethod__"} or set(function.__code__.co_freevars) - {"__class__"}:
            raise NotSame
        if not same_code(function.__code__, code):
            raise NotSame
        check_defaults(function, node, names)


_ABSTRACT = "abstractmethod"


def _comes_by_itself(cls: type, name: str, value: object) -> bool:
    """Whether Python or `dataclass` gave it to the class."""
    if name in _OF_EVERY_CLASS or isinstance(value, GetSetDescriptorType):
        return True
    if isinstance(value, MemberDescriptorType):
        return value.__objclass__ is cls
    if name == "__hash__" and value is None:
        return "__eq__" in vars(cls)
    if name not in _OF_DATACLASSES or "__dataclass_params__" not in vars(cls):
        return False
    files = ("<string>", dataclasses.__file__)
    return not isinstance(value, FunctionType) or value.__code__.co_filename in files


def _check(value: object, text: ast.expr, names: Mapping[str, Any]) -> None:
    fresh = _value(text, names)
    if fresh is value and not isinstance(value, list | dict | set):
        return
    if isinstance(fresh, re.Pattern) and isinstance(value, re.Pattern):
        if (fresh.pattern, fresh.flags) != (value.pattern, value.flags):
            raise NotSame
        return
    if not (is_literal(fresh) and is_literal(value) and type(fresh) is type(value) and repr(fresh) == repr(value)):
        raise NotSame


def _value(text: ast.expr, names: Mapping[str, Any]) -> Any:
    """What the expression gives. Raises NotSame if that takes more than looking at it."""
    match text:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name in names:
            return names[name]
        case ast.Name(name) if hasattr(builtins, name):
            return getattr(builtins, name)
        case ast.Attribute(ast.Name(name), attribute) if _is_installed_module(names.get(name)):
            return getattr(names[name], attribute)
        case ast.Tuple(elts):
            return tuple(_value(one, names) for one in elts)
        case ast.List(elts):
            return [_value(one, names) for one in elts]
        case ast.Set(elts) if all(isinstance(one, ast.Constant) for one in elts):
            return {_value(one, names) for one in elts}
        case ast.Dict(keys, values) if all(isinstance(one, ast.Constant) for one in keys):
            return {k.value: _value(v, names) for k, v in zip(keys, values, strict=True)}  # type: ignore[union-attr]
        case ast.UnaryOp(kind, operand) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_number(operand, names))
        case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
            try:
                return _OPERATORS[type(kind)](_number(left, names), _number(right, names))
            except (ArithmeticError, TypeError) as error:
                raise _NotTold from error
        case ast.Call(called, arguments, []) if _value(called, names) is re.compile:
            return re.compile(*(_value(one, names) for one in arguments))
    raise _NotTold


def _number(text: ast.expr, names: Mapping[str, Any]) -> Any:
    value = _value(text, names)
    if not isinstance(value, int | float) or abs(value) > _MOST:
        raise _NotTold
    return value


def _is_installed_module(value: object) -> bool:
    return isinstance(value, ModuleType) and value in (math, re)
