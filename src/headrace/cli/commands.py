"""Every command of `headrace`, and the arguments that it takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from headrace import __version__
from headrace.config.kinds import KINDS


def make_parser() -> argparse.ArgumentParser:
    """Of what it reads, `module` is that under `headrace.cli` whose `run` is the command."""
    parser = argparse.ArgumentParser(
        prog="headrace", description="Asynchronous reinforcement-learning post-training for language models."
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module, add_arguments, summary in _COMMANDS:
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(module=module)
        add_arguments(command)
    return parser


def _quickstart(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dir", default="quickstart", help="folder for all that is made (default: quickstart)")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument(
        "--large", action="store_true", help="a model of 10.3 M parameters and sums of up to 20 terms: for a GPU"
    )
    command.add_argument("--only-inputs", action="store_true", help="make the data, the model and the configs only")
    command.add_argument("--fresh", action="store_true", help="erase what an earlier quickstart made there")


def _init(command: argparse.ArgumentParser) -> None:
    command.add_argument("dir", metavar="DIR", nargs="?", default=".", help="folder for them (default: this one)")
    command.add_argument(
        "--from",
        dest="source",
        nargs=2,
        metavar=("trl|verl", "FILE"),
        help="translate another trainer's settings: arguments of TRL's GRPOConfig in YAML, JSON or a Python file, or "
        "verl's in YAML or a shell script; and list what could not be",
    )


def _train(command: argparse.ArgumentParser) -> None:
    _config(command)
    command.add_argument("--dir", help="the run's folder (default: runs/NAME-OF-CONFIG)")
    _begin(command)
    _from(command)
    command.add_argument("--from-optimizer", action="store_true", help="with --from: take the optimiser's moments too")
    command.add_argument(
        "--rollouts-only",
        action="store_true",
        help="generate and record, for a later run's data.rollouts; train nothing",
    )
    _resource(command)
    command.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    command.add_argument("--plain", action="store_true", help="a line for each batch instead of the live view")


def _submit(command: argparse.ArgumentParser) -> None:
    _config(command)
    command.add_argument(
        "--address",
        metavar="URL",
        default="http://127.0.0.1:8265",
        help="of the cluster's job server (default: %(default)s)",
    )
    command.add_argument("--dir", help="the run's folder, which the cluster sees (default: runs/NAME-OF-CONFIG)")
    _resource(command)
    _begin(command)


def _offline(command: argparse.ArgumentParser) -> None:
    _config(command)
    command.add_argument("--dir", required=True, help="folder for the model that comes out")
    command.add_argument("--plain", action="store_true", help="lines instead of the live view")
    _begin(command)
    _from(command)


def _eval(command: argparse.ArgumentParser) -> None:
    _config(command, "YAML file, or a run's folder: then its last checkpoint is scored")
    command.add_argument("--model", help="model folder, instead of the config's")
    command.add_argument("--checkpoint", metavar="best|last|N", help="of the run, instead of its last one")
    command.add_argument("--set", metavar="NAME", action="append", default=[], help="only this held-out set")
    command.add_argument("--json", action="store_true", help="print the results as JSON, by set")


def _scale(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", metavar="RUN", help="its folder")
    command.add_argument("--engines", type=int, metavar="N", help="engines of the policy that there are to be")
    command.add_argument("--rollout-workers", type=int, metavar="N", help="rollout workers that there are to be")


def _check(command: argparse.ArgumentParser) -> None:
    _config(command)
    command.add_argument(
        "--kind",
        choices=tuple(KINDS),
        help="whose config it is: %(choices)s (default: the first of them that knows all of its keys)",
    )
    _resource(command)


def _serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="model folder in Hugging Face format, or the name of one on the Hub")
    command.add_argument("--host", default="127.0.0.1")
    command.add_argument("--port", type=int, default=8000)
    command.add_argument(
        "--token-env", metavar="NAME", help="environment variable that holds the token which clients must send"
    )
    command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    command.add_argument("--max-concurrent-sequences", type=int, default=64)
    command.add_argument("--max-context", type=int)
    command.add_argument("--template-file", metavar="FILE", help="Jinja file instead of the model's chat template")
    command.add_argument(
        "--template-kwargs", metavar="JSON", default="{}", help="variables of the chat template, as a JSON object"
    )
    command.add_argument("--system", metavar="TEXT", help="a system message for conversations that have none")
    command.add_argument("--seed", type=int, default=0, help="of the sampling noise of requests without a seed")


def _inspect(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", metavar="RUN", help="the run's folder")
    as_json = command.add_mutually_exclusive_group()
    as_json.add_argument("--json", action="store_true", help="print the fields of summary.json")
    as_json.add_argument("--batches", action="store_true", help="print what was recorded of each batch, a JSON a line")


def _rollouts(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", metavar="RUN", help="the run's folder")
    command.add_argument("--batch", metavar="N|N:M", help="of a batch, or of a range of them")
    command.add_argument("--prompt", metavar="ID", help="answers to one prompt")
    ends = command.add_mutually_exclusive_group()
    ends.add_argument("--best", action="store_true", help="the highest rewards first")
    ends.add_argument("--worst", action="store_true", help="the lowest rewards first")
    ends.add_argument(
        "--sort",
        choices=("batch", "reward", "advantage", "tokens", "staleness"),
        help="by a number, the highest first (batches: the first)",
    )
    command.add_argument("--failed", action="store_true", help="those that failed")
    command.add_argument("--dropped", action="store_true", help="those of groups that were not trained on")
    command.add_argument("--grep", metavar="PATTERN", help="those whose text has this regular expression")
    command.add_argument("--limit", type=int, help="how many at most (default: 20; with --json or --html all)")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON a line, with all tokens")
    form.add_argument("--html", metavar="FILE", help="write a page that shows every token")


def _plot(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dirs", metavar="RUN", nargs="+", help="a run's folder; seeds of one config become a band")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="ends in .svg, .html or .png")
    command.add_argument("--by", choices=("batch", "time"), default="batch", help="what is along x (default: batch)")
    command.add_argument(
        "--smooth", metavar="N", type=int, default=1, help="draw means of the last N batches (default: 1, as recorded)"
    )
    command.add_argument("--each", action="store_true", help="a line for each run, seeds of one config as well")


def _schema(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "kind",
        metavar="COMMAND",
        nargs="?",
        choices=tuple(KINDS),
        default="train",
        help="whose config: %(choices)s (default: train)",
    )


def _doctor(command: argparse.ArgumentParser) -> None:
    """It takes none."""


def _begin(command: argparse.ArgumentParser) -> None:
    begin = command.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="continue the run in --dir from its last checkpoint")
    begin.add_argument("--fresh", action="store_true", help="erase the run in --dir and begin again")


def _from(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--from",
        dest="from_run",
        metavar="RUN[@N]",
        help="begin with the weights of another run's last checkpoint, or of that of version N",
    )


def _resource(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--resource",
        metavar="JSON",
        help="""devices of each role in a Ray cluster, as '{"actor": [1, 2], "rollout": [1, 4]}': short for """
        "cluster.place",
    )


def _config(command: argparse.ArgumentParser, what: str = "YAML file") -> None:
    command.add_argument("config", metavar="CONFIG", help=what)
    command.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="override a key of the config")


_COMMANDS: tuple[tuple[str, str, Callable[[argparse.ArgumentParser], None], str], ...] = (
    ("quickstart", "quickstart.command", _quickstart, "make real input, train on it, and report: the whole way"),
    ("init", "init.command", _init, "write a config, a reward with its test, and a few rows, to begin with"),
    ("train", "train", _train, "train a policy with asynchronous reinforcement learning"),
    ("submit", "submit", _submit, "train as a job of a Ray cluster: hand it over, follow it, stop it"),
    ("sft", "offline", _offline, "fine-tune a model on demonstrations"),
    ("rm", "offline", _offline, "train a reward model on pairs of a chosen and a rejected response"),
    ("dpo", "offline", _offline, "train a policy on such pairs, without sampling"),
    ("eval", "evaluate", _eval, "score a model on the held-out prompts of a config, or a run"),
    ("scale", "scale", _scale, "have a run that is at work use more engines and rollout workers, or fewer"),
    ("check", "check", _check, "validate a config and print what its command would start"),
    ("serve", "serve", _serve, "serve a model over HTTP with the embedded engine"),
    ("inspect", "inspect", _inspect, "show a run, while it goes or after"),
    ("rollouts", "rollouts", _rollouts, "show what the policy wrote in a run, while it goes or after"),
    ("plot", "plot", _plot, "draw the curves of runs, while they go or after"),
    ("schema", "schema", _schema, "print the JSON Schema of a config, for editors"),
    ("doctor", "doctor", _doctor, "look at this machine and installation"),
)
"""In the order of `headrace --help`: the name, the module, what adds its arguments, and what it does."""
