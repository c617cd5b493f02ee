"""What no seed fixes is not in the source: sets of tasks that are gone over, and generators that nobody closes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
PLAIN_ITERATORS = ("leases", "_leases")
"""Methods whose asynchronous iterators are no generators: nothing of them is left open."""


def gone_over(tree: ast.Module) -> list[int]:
    """Lines in which the sets that `asyncio.wait` returned are gone over: they come in the order of addresses."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef):
            continue
        sets: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _is_wait(node.value):
                sets |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.comprehension)]
        over = [loop.iter for loop in loops]
        found += [one.lineno for one in over if _is_wait(one) or (isinstance(one, ast.Name) and one.id in sets)]
    return sorted(set(found))


def _is_wait(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        node = node.value
    node = node.value if isinstance(node, ast.Await) else node
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.wait", "wait", "asyncio.as_completed")


def left_open(tree: ast.Module) -> list[int]:
    """Lines that go over an asynchronous generator which nobody closes: it would end whenever it is collected."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFor)]
    loops += [node for node in ast.walk(tree) if isinstance(node, ast.comprehension) and node.is_async]
    return sorted(
        loop.iter.lineno
        for loop in loops
        if isinstance(loop.iter, ast.Call)
        and not (isinstance(loop.iter.func, ast.Attribute) and loop.iter.func.attr in PLAIN_ITERATORS)
    )


def generators_of_leases(tree: ast.Module) -> list[int]:
    """Lines that begin one of PLAIN_ITERATORS which is a generator after all."""
    return [
        function.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.AsyncFunctionDef) and function.name in PLAIN_ITERATORS
        if any(isinstance(node, ast.Yield) for node in ast.walk(function))
    ]


RULES = {
    gone_over: ("wait(", "as_completed("),
    left_open: ("async for",),
    generators_of_leases: PLAIN_ITERATORS,
}
"""With words without which a file has nothing of the kind."""


def test_nothing_of_the_source_is_left_to_chance() -> None:
    faults = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        rules = [rule for rule, words in RULES.items() if any(word in text for word in words)]
        tree = ast.parse(text if rules else "")
        faults += [(rule.__name__, str(path), lines) for rule in rules if (lines := rule(tree))]
    assert faults == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (
            "async def f():\n    done, left = await asyncio.wait(tasks)\n    for task in done:\n        task.result()",
            True,
        ),
        ("async def f():\n    done, left = await asyncio.wait(tasks)\n    [task.cancel() for task in left]", True),
        ("async def f():\n    for task in (await asyncio.wait(tasks))[0]:\n        task.result()", True),
        (
            "async def f():\n    done, _ = await asyncio.wait(tasks)\n    for task in tasks:\n        task in done",
            False,
        ),
    ],
)
def test_the_rule_finds_sets_that_are_gone_over(source: str, fault: bool) -> None:
    assert bool(gone_over(ast.parse(source))) is fault


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("async def f():\n    async for chunk in engine.generate(request):\n        break", True),
        ("async def f():\n    return [chunk async for chunk in generate()]", True),
        (
            "async def f():\n    async with aclosing(g()) as chunks:\n        async for c in chunks:\n            c",
            False,
        ),
        ("async def f():\n    async for lease in table.leases(1):\n        break", False),
    ],
)
def test_the_rule_finds_generators_that_are_left_open(source: str, fault: bool) -> None:
    assert bool(left_open(ast.parse(source))) is fault


def test_the_rule_finds_leases_that_are_a_generator() -> None:
    source = "class Table:\n    async def leases(self):\n        {}"
    assert generators_of_leases(ast.parse(source.format("yield 1"))) == [2]
    assert generators_of_leases(ast.parse(source.format("return Leases()"))) == []
