"""The text of a resolved config, as a run keeps it: YAML that both YAML 1.1 and `load_config` read alike."""

from __future__ import annotations

from typing import Any

import yaml

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def in_yaml(values: Any) -> str:
    """`values` are what JSON has: keys in their order, no flow style, and quotes around each text that anyone could
    take for a number, as `1e3`, which is a text in YAML 1.1 and a number in YAML 1.2 and OmegaConf."""
    text: str = yaml.dump(values, Dumper=_TextDumper, allow_unicode=True, sort_keys=False, default_flow_style=False)
    return text


def values_of(config_yaml: str) -> Any:
    """What a run's config holds. Raises yaml.YAMLError for what is no YAML."""
    return yaml.load(config_yaml, Loader=_Loader)


class _TextDumper(_Dumper):
    def ignore_aliases(self, data: Any) -> bool:
        """An equal list at two places is written twice: whoever edits one does not edit the other."""
        return True


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if _is_number(text) else None)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True


_TextDumper.add_representer(str, _text)
