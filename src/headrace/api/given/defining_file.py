"""A callable that a file defines, and that cannot be told apart from the rest of it: by the file, whose digest is
checked."""

from __future__ import annotations

import ast
import sys
from hashlib import sha256
from pathlib import Path
from types import FunctionType

from headrace.api.given.sameness import NotSame, check_fresh
from headrace.api.given.sources import HEAD, is_installed, needs

_TEXT = """\
import sys
from hashlib import sha256
from os.path import realpath

FILE = {file!r}
with open(FILE, "rb") as file:
    if sha256(file.read()).hexdigest() != {digest!r}:
        raise ImportError(f"{{FILE}}, which defines {name}, was changed since the run was given it; put it back")
sys.path.append({folder!r})

import {module} as module

if realpath(module.__file__) != FILE:
    raise ImportError(f"{module} is {{module.__file__}} here, and was {{FILE}} when the run was given it")
{name} = module.{name}
"""


def by_file(thing: object) -> tuple[str, str] | None:
    """The text of a file that imports the function or class `thing` from its module if that is as it was, and its name
    there. None unless a file defines it at its top level (not the script that runs), as it is now."""
    if not isinstance(thing, FunctionType | type) or thing.__qualname__ != thing.__name__:
        return None
    own, name = thing, thing.__name__
    module = sys.modules.get(thing.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or thing.__module__ == "__main__" or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    if vars(module).get(name) is not thing or not path.is_file():
        return None
    parts = module.__name__.split(".")
    if not all(part.isidentifier() for part in parts) or path.stem not in (parts[-1], "__init__"):
        return None
    data = path.read_bytes()
    try:
        if not is_installed(file):
            check_fresh(own, ast.parse(data), compile(data, file, "exec", dont_inherit=True), vars(module))
    except (NotSame, SyntaxError, ValueError):
        return None
    up = len(parts) - 1 + (path.name == "__init__.py")
    folder = str(path.parents[up])
    beside = str(path.parents[up - 1]) if up else str(path.parent)
    text = _TEXT.format(
        file=str(path), digest=sha256(data).hexdigest(), folder=folder, module=module.__name__, name=name
    )
    return "\n".join([HEAD, *needs(dict.fromkeys([folder, beside, str(path)])), text]), name
