"""What a Python script gives to TRL's trainer, read from its syntax tree; it is not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.init.translate import Unreadable
from headrace.config import ConfigError

LORA = (
    "LORA IS NOT HERE: all weights are trained (full training), which takes the memory of all of them and their "
    "optimizer's state, and wants a lower learning rate than adapters do"
)
_POSITIONS = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class")
"""Of `GRPOTrainer`."""
_OF_FILE = "split of a file"
"""The one that `load_dataset` gives a file; here a file has none."""
_FILES = ("json", "csv", "parquet", "arrow")
"""What `load_dataset` calls kinds of local files."""


def read_script(text: str, file: Path) -> dict[str, Any]:
    """By name: the arguments of `GRPOConfig` and `GRPOTrainer`. Raises ConfigError."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no Python: {error}") from error
    return _Script(tree, file).settings()


class _Script:
    def __init__(self, tree: ast.Module, file: Path) -> None:
        self._file = file
        self._nodes = list(ast.walk(tree))
        self._functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._trains = any(_called(node) in ("GRPOTrainer", "train") for node in _on_import(tree.body))
        self._assigned: dict[str, list[ast.expr]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._assigned.setdefault(target.id, []).append(node.value)
        self._loads: set[ast.Call] = set()
        """Calls of `load_dataset` that are translated."""
        self._rest: dict[str, Any] = {}
        """What is done with data, and other things that are no argument."""

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        configured = False
        for node in self._nodes:
            if _called(node) == "GRPOConfig" and isinstance(node, ast.Call):
                found |= {word.arg or f"**{ast.unparse(word.value)}": self._value(word.value) for word in node.keywords}
                configured = True
        for node in self._nodes:
            if _called(node) == "GRPOTrainer" and isinstance(node, ast.Call):
                given = dict(zip(_POSITIONS, node.args, strict=False))
                given |= {word.arg or f"**{ast.unparse(word.value)}": word.value for word in node.keywords}
                for name, value in given.items():
                    found |= self._argument(name, value, configured)
        if not found:
            return {}
        for node in self._nodes:
            if _called(node) == "load_dataset" and node not in self._loads:
                self._rest[ast.unparse(node)] = Unreadable("nothing tells that it is train_dataset or eval_dataset")
            if _called(node) == "LoraConfig" and "peft_config" not in found:
                self._rest[ast.unparse(node)] = Unreadable(LORA)
        return found | self._rest

    def _argument(self, name: str, node: ast.expr, configured: bool) -> dict[str, Any]:
        if isinstance(node, ast.Constant) and node.value is None:
            return {}
        if name == "args":
            return {} if configured else {name: Unreadable(f"no GRPOConfig(...) is called for {ast.unparse(node)}")}
        if name == "model":
            return {"model_name_or_path": self._model(node)}
        if name == "reward_funcs":
            return {name: self._rewards(node)}
        if name in ("train_dataset", "eval_dataset"):
            return {name: self._data(node, name)}
        if name == "peft_config":
            return {name: Unreadable(LORA)}
        return {name: Unreadable(f"it is {ast.unparse(node)}, which nothing here takes")}

    def _value(self, node: ast.expr) -> Any:
        """Of literals, and names that are given one literal."""
        once = self._once(node)
        try:
            return ast.literal_eval(node if once is None else once)
        except (ValueError, TypeError, MemoryError, RecursionError):
            return Unreadable(f"it is {ast.unparse(node)}, which only running the file would tell")

    def _once(self, node: ast.expr) -> ast.expr | None:
        """What a name stands for, if one line says so."""
        values = self._assigned.get(node.id, []) if isinstance(node, ast.Name) else []
        return values[0] if len(values) == 1 else None

    def _model(self, node: ast.expr) -> Any:
        made = self._once(node) or node
        if isinstance(made, ast.Call) and _called(made) == "from_pretrained" and made.args:
            return self._value(made.args[0])
        return self._value(node)

    def _rewards(self, node: ast.expr) -> Any:
        """Texts: `FILE.py:name` of a function that the script defines; what is text there, as it is."""
        node = self._once(node) or node
        parts: Sequence[ast.expr] = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        names: list[str] = []
        for part in parts:
            if isinstance(part, ast.Name) and part.id in self._functions:
                place = f"{self._file.absolute()}:{part.id}"
                if self._trains:
                    return Unreadable(
                        f"{part.id} is in {self._file}, which trains when it is loaded: move {part.id} into a file of "
                        f"its own, and give reward.function: FILE.py:{part.id} with reward.style: trl"
                    )
                names.append(place)
            elif isinstance(text := self._value(part), str):
                names.append(text)
            else:
                return Unreadable(
                    f"{ast.unparse(part)} is no function that the file defines; give its place: reward.function: "
                    "path.py:function and reward.style: trl"
                )
        return names

    def _data(self, node: ast.expr, argument: str) -> Any:
        """A section of `data`, if it comes of `load_dataset` with literals."""
        steps: list[str] = []
        found = self._loaded(node, steps, set())
        for step in steps:
            self._rest[step] = Unreadable(f"{argument} is changed by it: write the rows that come out into a file")
        if found is None:
            return Unreadable(f"it is {ast.unparse(node)}, which only running the file would tell")
        return {key: value for key, value in found.items() if key != _OF_FILE}

    def _loaded(self, node: ast.expr, steps: list[str], seen: set[str]) -> dict[str, str] | None:
        if isinstance(node, ast.Name):
            if node.id in seen:
                return None
            found = [self._loaded(value, steps, seen | {node.id}) for value in self._assigned.get(node.id, [])]
            whole = [one for one in found if one is not None]
            return whole[0] if len(whole) == 1 else None
        if isinstance(node, ast.Subscript):
            below = self._loaded(node.value, steps, seen)
            split = self._value(node.slice)
            if below is None or not isinstance(split, str):
                return None
            if _OF_FILE in below:
                return below if split == below[_OF_FILE] else None
            return {**below, "split": split}
        if not isinstance(node, ast.Call):
            return None
        if _called(node) == "load_dataset":
            return self._load(node)
        if isinstance(node.func, ast.Attribute):
            steps.append(ast.unparse(node) if isinstance(node.func.value, ast.Name) else f".{node.func.attr}(...)")
            return self._loaded(node.func.value, steps, seen)
        return None

    def _load(self, node: ast.Call) -> dict[str, str] | None:
        given = dict(zip(("path", "name"), map(self._value, node.args), strict=False))
        given |= {str(word.arg): self._value(word.value) for word in node.keywords}
        told = {
            key: value for key, value in given.items() if key in ("path", "name", "split", "revision", "data_files")
        }
        if not isinstance(told.get("path"), str) or not all(isinstance(value, str) for value in told.values()):
            return None
        self._loads.add(node)
        if "data_files" in told:
            local = told["path"] in _FILES and told.get("split", "train") == "train"
            return {"path": told["data_files"], _OF_FILE: "train"} if local else None
        names = {"path": "path", "name": "subset", "split": "split", "revision": "revision"}
        return {names[key]: value for key, value in told.items()}


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _on_import(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """What a file does when it is loaded: not what functions, classes and `if __name__ == "__main__"` hold."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)):
            yield from ast.walk(statement)
