"""What a run is given in Python: written into RUN/inputs/ where it has a form there, and named by the config's keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.api.given.defining_file import by_file
from headrace.api.given.given_rows import lines_of
from headrace.api.given.sources import source_of
from headrace.config.errors import ConfigError
from headrace.plugins.named import IN_MEMORY
from headrace.store.inputs import write_input


class Inputs:
    """Each method gives the keys of the config for one argument, none for None."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        """`folder`: the run's."""
        self.objects: dict[str, Any] = {}
        """By the text that stands in the config: the callables themselves."""
        self.only_here: list[str] = []
        """Arguments that no file defines."""
        self._arguments: dict[str, str] = {}
        """By the file that each was written to."""
        self._folder = folder
        self._resume = resume
        self._made = not folder.exists()
        self._before = set(self._files())

    def data(self, data: Any, argument: str, key: str, name: str) -> dict[str, Any]:
        """Rows, or the path of a file of them."""
        if data is None:
            return {}
        if isinstance(data, str | Path):
            return {key: str(data)}
        written = write_input(self._folder, name, "jsonl", lines_of(data, argument))
        self._arguments[str(written)] = argument
        if self._resume and written not in self._before:
            written.unlink()
            raise ConfigError(
                f"{argument} is not what the run in {self._folder} began with; give the same rows, leave {argument} "
                "out, which goes on with those that it began with, or begin another run"
            )
        return {key: _text(written)}

    def reward(self, reward: Any) -> dict[str, Any]:
        """A function, a text as in the config, several of these, or what stands under `reward` in the config."""
        if reward is None:
            return {}
        if isinstance(reward, Mapping):
            return {"reward": reward}
        if isinstance(reward, Sequence) and not isinstance(reward, str):
            terms = [
                one if isinstance(one, Mapping) else {"function": self.function(one, f"reward[{place}]", "reward")}
                for place, one in enumerate(reward)
            ]
            return {"reward.terms": terms}
        return {"reward.function": self._spec(reward, "reward", "reward")}

    def function(self, function: Any, argument: str, name: str) -> str:
        """What stands for it in the config; `name`: of the file that its source is written to."""
        return self._spec(function, argument, name)

    def workflow(self, workflow: Any) -> dict[str, Any]:
        """A class, or an object of one."""
        if workflow is None:
            return {}
        is_object = not isinstance(workflow, type | str)
        if is_object and not getattr(workflow, "__dict__", {}) and not hasattr(type(workflow), "__slots__"):
            workflow = type(workflow)  # nothing tells the object from another one of its class
        return {"rollout.workflow": self._spec(workflow, "workflow", "workflow", wanted=None)}

    def environment(self, environment: Any) -> dict[str, Any]:
        """A class, or a function that makes one."""
        if environment is None:
            return {}
        spec = self._spec(environment, "environment", "environment", wanted="a class, or a function that makes one")
        return {"rollout.environment": spec, "rollout.workflow": "multi_turn"}

    def filters(self, filters: Any) -> dict[str, Any]:
        """One or several: functions, or entries as in the config."""
        if filters is None:
            return {}
        one = callable(filters) or isinstance(filters, str | Mapping) or not isinstance(filters, Iterable)
        several = [filters] if one else list(filters)
        return {
            "rollout.filters": [
                one if isinstance(one, Mapping) else self._spec(one, f"filters[{place}]", "filter")
                for place, one in enumerate(several)
            ]
        }

    def rename(self, error: BaseException) -> None:
        """Have an error for the user call what was given by the argument's name, not by the file that it was written
        to."""
        if isinstance(error, ConfigError) and len(error.args) == 1 and isinstance(words := error.args[0], str):
            for file, argument in self._arguments.items():
                words = words.replace(file, argument)
            error.args = (words,)

    def tidy(self) -> None:
        """Remove what was written, and the folder if it was made: there is no run to be given it."""
        for path in set(self._files()) - self._before:
            path.unlink(missing_ok=True)
        if self._made:
            for empty in (self._folder / "inputs", self._folder):
                with suppress(OSError):
                    empty.rmdir()

    def _spec(self, thing: Any, argument: str, name: str, *, wanted: str | None = "a function") -> str:
        """What stands for `thing` in the config. `wanted`: what can be called; None is any object."""
        if isinstance(thing, str):
            return thing
        if wanted is not None and not callable(thing):
            raise ConfigError(f"{argument} is of type {type(thing).__name__}; give {wanted}, or text as in the config")
        spec = None
        if (own := source_of(thing, name) or by_file(thing)) is not None:
            text, defined = own
            spec = f"{write_input(self._folder, name, 'py', [text.encode()])}:{defined}"
        if spec is None:
            spec = self._in_memory(thing, argument)
        spec = _text(spec)
        self.objects[spec.replace("\\${", "${")] = thing
        return spec

    def _in_memory(self, thing: Any, argument: str) -> str:
        called = getattr(thing, "__name__", type(thing).__name__)
        if self._resume:
            raise ConfigError(
                f"{argument} is {called}, which no file and no source of its own defines (it has a closure, uses "
                "names that are neither modules nor constants, or has defaults or attributes that its source would not "
                "give again), so nobody can say that it is what the run began with; "
                "write it into a file and begin again to have a run that can be resumed"
            )
        self.only_here.append(argument)
        spec = f"{IN_MEMORY}:{called.strip('<>')}"
        return spec if spec not in self.objects else f"{spec}-{len(self.objects)}"

    def _files(self) -> list[Path]:
        folder = self._folder / "inputs"
        return list(folder.iterdir()) if folder.is_dir() else []


def _text(path: str | Path) -> str:
    """As a value of a config, where nothing in it is interpolated."""
    return str(path).replace("${", r"\${")
