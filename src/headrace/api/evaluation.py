"""`headrace.evaluate`, and what is awaited of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.api import background
from headrace.api.given.inputs import Inputs
from headrace.api.given.objects_in_config import named, several
from headrace.api.training import Config, dotted
from headrace.api.view import notes
from headrace.config import TrainConfig, load_config
from headrace.config.evaluation import PLAIN

if TYPE_CHECKING:
    from headrace.controller.stopping import StopRequest


def evaluate(
    config: Config,
    *,
    model: str | Path | None = None,
    eval_data: Any = None,
    reward: Any = None,
    workflow: Any = None,
    environment: Any = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Score a model on held-out prompts as `headrace eval` does; the result is what `headrace eval --json` prints.

    `model`: a folder or Hub name instead of the config's. Arguments and errors else as of `headrace.train`. A signal
    gives it up with KeyboardInterrupt.
    """
    job = _Job(config, model, eval_data, reward, workflow, environment, overrides)
    stop = background.stop_request("the evaluation is given up")
    result, signalled = background.wait(lambda: job.run(stop), stop)
    if result is None:
        raise KeyboardInterrupt(f"the evaluation was given up for {signalled}")
    return result


async def aevaluate(
    config: Config,
    *,
    model: str | Path | None = None,
    eval_data: Any = None,
    reward: Any = None,
    workflow: Any = None,
    environment: Any = None,
    **overrides: Any,
) -> dict[str, Any]:
    """As `evaluate`, while the caller's event loop goes on."""
    job = _Job(config, model, eval_data, reward, workflow, environment, overrides)
    stop = background.stop_request("the evaluation is given up")
    return await background.wait_async(lambda: job.run(stop), stop) or {}


def as_json(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results of the sets by name, as one mapping: those of `data.eval`, and of the others under `sets`."""
    return {**results.get(PLAIN, {}), "sets": {name: one for name, one in results.items() if name != PLAIN}}


@dataclass(frozen=True, slots=True)
class _Job:
    config: Config
    model: str | Path | None
    eval_data: Any
    reward: Any
    workflow: Any
    environment: Any
    overrides: Mapping[str, Any]

    def run(self, stop: StopRequest) -> dict[str, Any] | None:
        """None if it was stopped. What was given in Python is written to a folder that is gone afterwards."""
        from headrace.controller.evaluate import evaluate
        from headrace.controller.planning.plan import make_plan
        from headrace.runtime.event_loop import run_to_end

        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            inputs = Inputs(Path(folder), resume=False)
            try:
                config = named(self.config, inputs)
                values = named(self._values(config, inputs), inputs)
                plan = make_plan(load_config(TrainConfig, config, values), given=inputs.objects)
                notes(plan.notes)
                results = run_to_end(lambda: background.unless(stop, evaluate(plan)), "headrace.evaluate")
                return None if results is None else as_json(results)
            except BaseException as error:
                inputs.rename(error)
                raise

    def _values(self, config: Any, inputs: Inputs) -> dict[str, Any]:
        """By the keys of the config."""
        held_out = several(self.eval_data, inputs)
        return {
            **dotted(self.overrides),
            **({} if self.model is None else {"model.path": str(self.model)}),
            **_prompts(config, held_out),
            **held_out,
            **inputs.environment(self.environment),
            **inputs.workflow(self.workflow),
            **inputs.reward(self.reward),
        }


def _prompts(config: Any, held_out: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is trained on, but a config names something."""
    lacks = isinstance(config, Mapping) and "train" not in (config.get("data") or {})
    return {"data.train": next(iter(held_out.values()))} if lacks and held_out else {}
