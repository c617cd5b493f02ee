"""Writes docs/configuration.md from the config models: `python docs/make_reference.py`."""

from pathlib import Path

from headrace.config.kinds import KINDS
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


if __name__ == "__main__":
    (Path(__file__).parent / "configuration.md").write_text(page())
