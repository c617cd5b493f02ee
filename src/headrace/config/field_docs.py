"""The documentation of config keys: the string under each field, read from the source when it is asked for.

Not as classes are made: that would be a third of what importing this room takes, in every process of a run.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from headrace.config.base import Section


@cache
def field_docs(section: type[Section]) -> dict[str, str]:
    """By field name, those of the sections that it extends included. A field without such a string is left out. Raises
    OSError where the source is not at hand."""
    docs: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, Section):
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            assert isinstance(body, ast.ClassDef)
            for field, below in pairwise(body.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                        docs[name] = inspect.cleandoc(text)
    return docs
