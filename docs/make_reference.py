"""Writes docs/configuration.md from the config models, and into docs/run.md the table of what `--resume` may change:
`python docs/make_reference.py`."""

import re
from pathlib import Path

from headrace.config.kinds import KINDS
from headrace.config.reading.resume import ALIKE, SAFE
from headrace.config.reference import render_reference

HEAD = """# Configuration

Every key of the YAML files, with its type, bounds and default. A key is overridden on the command line by its dotted
name: `headrace train grpo.yaml trainer.optimizer.lr=1e-6`. This page is made from the models in `src/headrace/config/`
by `python docs/make_reference.py`.

Editors check a config while it is written, and complete its keys, from its JSON Schema: `headrace schema train >
train.schema.json`, and in the config's first line `# yaml-language-server: $schema=train.schema.json`.

"""


def page() -> str:
    """The whole page."""
    parts = [render_reference(f"`headrace {name}`", kind) for name, kind in KINDS.items()]
    return HEAD + "\n".join(parts)


def resume_table() -> str:
    """Of keys that `--resume` may change: a row for each reason."""
    keys: dict[str, list[str]] = {}
    for key, safe in SAFE.items():
        keys.setdefault(safe.why, []).append(f"`{key}`")
    rows = [f"| {', '.join(names)} | {why} |" for why, names in keys.items()]
    for key, values in ALIKE.items():
        named = " and ".join(f"`{value}`" for value in values)
        rows.append(f"| `{key}`, between {named} | where it runs; any other value computes something else |")
    return "\n".join(["| keys | why |", "|---|---|", *rows]) + "\n"


def run_page(text: str) -> str:
    """`text`, docs/run.md as it is, with the table of `--resume` as it should be."""
    return re.sub(r"^\| keys \| why \|\n(?:\|.*\n)+", lambda _: resume_table(), text, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "configuration.md").write_text(page())
    (folder / "run.md").write_text(run_page((folder / "run.md").read_text()))
