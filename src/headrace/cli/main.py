"""Parses the command line and calls one command; the one place where errors become messages and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from headrace import __version__
from headrace.config.errors import ConfigError
from headrace.config.kinds import KINDS
from headrace.observe.untrusted import visible
from headrace.runtime.collection import expect_imports

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)
"""What asking whether a path is there raises, wherever that is."""
_BAD_INPUT, _FAILED, _UNREAD = 2, 1, 141
"""The last as of a program that SIGPIPE ends."""
_IDLE_S = 0.2
"""A thread without a call has ended by then."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed while running, 2 bad input, 130 interrupted, 141 nobody reads what is printed."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if unknown := [word for word in rest if word.startswith("-") or "=" not in word]:
        parser.error(f"unknown argument {unknown[0]!r}; see headrace {args.command} --help")
    if hasattr(args, "overrides"):
        args.overrides = [*args.overrides, *rest]
    elif rest:
        parser.error(f"headrace {args.command} takes no key=value, and was given {rest[0]!r}")
    run: Callable[[argparse.Namespace], int] = import_module(f"headrace.cli.{args.module}").run
    try:
        if getattr(args, "dir", None) == "":
            raise ConfigError("--dir is empty; give a folder")
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        from headrace.cli.piped import discard_output, has_reader

        if has_reader():
            raise
        discard_output()
        return _UNREAD
    except ConfigError as error:
        print(f"headrace: {visible(str(error))}", file=sys.stderr)
        return _BAD_INPUT
    except KeyboardInterrupt:
        print("headrace: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            from headrace.cli.piped import discard_output

            discard_output()
            print(f"headrace: no space left to write {error.filename or 'the output'}; free some", file=sys.stderr)
            return _FAILED
        if isinstance(error, OSError) and error.errno in _NO_PATH and error.filename:
            print(f"headrace: {error.filename}: {error.strerror}; give another path, or mend this one", file=sys.stderr)
            return _BAD_INPUT
        from headrace.api.errors import is_told

        if not is_told(error):
            raise
        print(f"headrace: {visible(str(error))}", file=sys.stderr)
        return _BAD_INPUT if type(error).__name__ in _REFUSALS else _FAILED


_REFUSALS = ("RunInUse", "RunMissing", "RunExists", "ConfigMismatch", "ClusterRefusal")
"""Errors that say no to the command, rather than that something broke."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description="Asynchronous reinforcement-learning post-training for language models."
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, module: str, summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary)
        added.set_defaults(module=module)
        return added

    quickstart = command("quickstart", "quickstart.command", "make real input, train on it, and report: the whole way")
    quickstart.add_argument("--dir", default="quickstart", help="folder for all that is made (default: quickstart)")
    quickstart.add_argument("--seed", type=int, default=0)
    quickstart.add_argument(
        "--large", action="store_true", help="a model of 10.3 M parameters and sums of up to 20 terms: for a GPU"
    )
    quickstart.add_argument("--only-inputs", action="store_true", help="make the data, the model and the configs only")
    quickstart.add_argument("--fresh", action="store_true", help="erase what an earlier quickstart made there")

    init = command("init", "init.command", "write a config, a reward with its test, and a few rows, to begin with")
    init.add_argument("dir", metavar="DIR", nargs="?", default=".", help="folder for them (default: this one)")
    init.add_argument(
        "--from",
        dest="source",
        nargs=2,
        metavar=("trl|verl", "FILE"),
        help="translate another trainer's settings: arguments of TRL's GRPOConfig in YAML, JSON or a Python file, or "
        "verl's in YAML or a shell script; and list what could not be",
    )

    train = command("train", "train", "train a policy with asynchronous reinforcement learning")
    _config(train)
    train.add_argument("--dir", help="the run's folder (default: runs/NAME-OF-CONFIG)")
    _begin(train)
    _from(train)
    train.add_argument("--from-optimizer", action="store_true", help="with --from: take the optimiser's moments too")
    train.add_argument(
        "--rollouts-only",
        action="store_true",
        help="generate and record, for a later run's data.rollouts; train nothing",
    )
    _resource(train)
    train.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    train.add_argument("--plain", action="store_true", help="a line for each batch instead of the live view")

    submit = command("submit", "submit", "train as a job of a Ray cluster: hand it over, follow it, stop it")
    _config(submit)
    submit.add_argument(
        "--address",
        metavar="URL",
        default="http://127.0.0.1:8265",
        help="of the cluster's job server (default: %(default)s)",
    )
    submit.add_argument("--dir", help="the run's folder, which the cluster sees (default: runs/NAME-OF-CONFIG)")
    _resource(submit)
    _begin(submit)

    for name, summary in (
        ("sft", "fine-tune a model on demonstrations"),
        ("rm", "train a reward model on pairs of a chosen and a rejected response"),
        ("dpo", "train a policy on such pairs, without sampling"),
    ):
        offline = command(name, "offline", summary)
        _config(offline)
        offline.add_argument("--dir", required=True, help="folder for the model that comes out")
        offline.add_argument("--plain", action="store_true", help="lines instead of the live view")
        _begin(offline)
        _from(offline)

    evaluate = command("eval", "evaluate", "score a model on the held-out prompts of a config, or a run")
    _config(evaluate, "YAML file, or a run's folder: then its last checkpoint is scored")
    evaluate.add_argument("--model", help="model folder, instead of the config's")
    evaluate.add_argument("--checkpoint", metavar="best|last|N", help="of the run, instead of its last one")
    evaluate.add_argument("--set", metavar="NAME", action="append", default=[], help="only this held-out set")
    evaluate.add_argument("--json", action="store_true", help="print the results as JSON, by set")

    scale = command("scale", "scale", "have a run that is at work use more engines and rollout workers, or fewer")
    scale.add_argument("run_dir", metavar="RUN", help="its folder")
    scale.add_argument("--engines", type=int, metavar="N", help="engines of the policy that there are to be")
    scale.add_argument("--rollout-workers", type=int, metavar="N", help="rollout workers that there are to be")

    check = command("check", "check", "validate a config and print what its command would start")
    _config(check)
    check.add_argument(
        "--kind",
        choices=tuple(KINDS),
        help="whose config it is: %(choices)s (default: the first of them that knows all of its keys)",
    )
    _resource(check)

    serve = command("serve", "serve", "serve a model over HTTP with the embedded engine")
    serve.add_argument("model", help="model folder in Hugging Face format, or the name of one on the Hub")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument(
        "--token-env", metavar="NAME", help="environment variable that holds the token which clients must send"
    )
    serve.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    serve.add_argument("--max-concurrent-sequences", type=int, default=64)
    serve.add_argument("--max-context", type=int)
    serve.add_argument("--template-file", metavar="FILE", help="Jinja file instead of the model's chat template")
    serve.add_argument(
        "--template-kwargs", metavar="JSON", default="{}", help="variables of the chat template, as a JSON object"
    )
    serve.add_argument("--system", metavar="TEXT", help="a system message for conversations that have none")
    serve.add_argument("--seed", type=int, default=0, help="of the sampling noise of requests without a seed")

    inspect = command("inspect", "inspect", "show a run, while it goes or after")
    inspect.add_argument("run_dir", metavar="RUN", help="the run's folder")
    as_json = inspect.add_mutually_exclusive_group()
    as_json.add_argument("--json", action="store_true", help="print the fields of summary.json")
    as_json.add_argument("--batches", action="store_true", help="print what was recorded of each batch, a JSON a line")

    rollouts = command("rollouts", "rollouts", "show what the policy wrote in a run, while it goes or after")
    rollouts.add_argument("run_dir", metavar="RUN", help="the run's folder")
    rollouts.add_argument("--batch", metavar="N|N:M", help="of a batch, or of a range of them")
    rollouts.add_argument("--prompt", metavar="ID", help="answers to one prompt")
    ends = rollouts.add_mutually_exclusive_group()
    ends.add_argument("--best", action="store_true", help="the highest rewards first")
    ends.add_argument("--worst", action="store_true", help="the lowest rewards first")
    ends.add_argument(
        "--sort",
        choices=("batch", "reward", "advantage", "tokens", "staleness"),
        help="by a number, the highest first (batches: the first)",
    )
    rollouts.add_argument("--failed", action="store_true", help="those that failed")
    rollouts.add_argument("--dropped", action="store_true", help="those of groups that were not trained on")
    rollouts.add_argument("--grep", metavar="PATTERN", help="those whose text has this regular expression")
    rollouts.add_argument("--limit", type=int, help="how many at most (default: 20; with --json or --html all)")
    form = rollouts.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON a line, with all tokens")
    form.add_argument("--html", metavar="FILE", help="write a page that shows every token")

    plot = command("plot", "plot", "draw the curves of runs, while they go or after")
    plot.add_argument("run_dirs", metavar="RUN", nargs="+", help="a run's folder; seeds of one config become a band")
    plot.add_argument("-o", "--output", metavar="FILE", required=True, help="ends in .svg, .html or .png")
    plot.add_argument("--by", choices=("batch", "time"), default="batch", help="what is along x (default: batch)")
    plot.add_argument(
        "--smooth", metavar="N", type=int, default=1, help="draw means of the last N batches (default: 1, as recorded)"
    )
    plot.add_argument("--each", action="store_true", help="a line for each run, seeds of one config as well")

    schema = command("schema", "schema", "print the JSON Schema of a config, for editors")
    schema.add_argument(
        "kind",
        metavar="COMMAND",
        nargs="?",
        choices=tuple(KINDS),
        default="train",
        help="whose config: %(choices)s (default: train)",
    )

    command("doctor", "doctor", "look at this machine and installation")
    return parser


def _begin(parser: argparse.ArgumentParser) -> None:
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="continue the run in --dir from its last checkpoint")
    begin.add_argument("--fresh", action="store_true", help="erase the run in --dir and begin again")


def _from(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="from_run",
        metavar="RUN[@N]",
        help="begin with the weights of another run's last checkpoint, or of that of version N",
    )


def _resource(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resource",
        metavar="JSON",
        help="""devices of each role in a Ray cluster, as '{"actor": [1, 2], "rollout": [1, 4]}': short for """
        "cluster.place",
    )


def _config(parser: argparse.ArgumentParser, what: str = "YAML file") -> None:
    parser.add_argument("config", metavar="CONFIG", help=what)
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="override a key of the config")


def entry() -> NoReturn:
    """`main` as a process, which ends even if a call of the user's never returns."""
    expect_imports()
    try:
        code = main()
    except BaseException:
        if not _is_held():
            raise
        traceback.print_exc()
        code = 1
    if _is_held():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python, on its way out, would take the thread's ground away under it
    sys.exit(code)


def _is_held() -> bool:
    """Whether a call on a thread was left behind."""
    from headrace.runtime.lane_thread import NAME_PREFIX

    threads = [thread for thread in threading.enumerate() if thread.name.startswith(NAME_PREFIX)]
    for thread in threads:
        thread.join(_IDLE_S)
    return any(thread.is_alive() for thread in threads)


if __name__ == "__main__":
    entry()
