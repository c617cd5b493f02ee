"""What a model folder must hold, checked before anything is loaded."""

from __future__ import annotations

import difflib
from pathlib import Path

from headrace.config import ConfigError
from headrace.config.values.paths import path_of
from headrace.models.hub import offline_snapshot
from headrace.models.weight_files import read_headers

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")


def find_model_folder(path: str) -> Path | None:
    """The local folder that `path` names, in the Hub's cache where the Hub cannot be reached; None for a model that the
    Hub has.

    Raises ConfigError if `path` looks like a folder and is none, is a folder without config.json, or is nowhere.
    """
    folder = path_of(path)
    if path and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"model folder {path!r} has no config.json; give the folder that `save_pretrained` wrote, "
                "which holds config.json, *.safetensors and the tokenizer's files"
            )
        return folder
    if path and folder.exists():
        raise ConfigError(f"model path {path!r} is a file; give the folder that holds it")
    if not _could_be_on_hub(path):
        raise ConfigError(
            f"model folder {path!r} does not exist{_suggestion(path)}; give a folder in Hugging Face format, or a Hub "
            "name as 'org/name'"
        )
    try:
        return offline_snapshot(path)
    except ConfigError as error:
        raise ConfigError(f"{error}{_suggestion(path)}") from error


def check_weights(path: str) -> None:
    """Raises ConfigError if the local folder `path` holds no safetensors weights, or as `read_headers`."""
    folder = find_model_folder(path)
    if folder is None:
        return
    if any(folder.glob("*.safetensors")):
        read_headers(folder)
        return
    if any((folder / name).is_file() for name in _PICKLED_WEIGHTS):
        raise ConfigError(
            f"model folder {path!r} has its weights in pickle files only, which can run code when read; "
            "save them again with `model.save_pretrained(folder)`, which writes safetensors"
        )
    raise ConfigError(
        f"model folder {path!r} has no weights (*.safetensors); copy them into it, or save the model there with "
        "`model.save_pretrained(folder)`"
    )


def has_vocabulary(path: str, named: object) -> bool:
    """Whether the tokenizer at `path` has a vocabulary in a file of a common name. One that is only `named`, as the
    `tokenizer_class` of its tokenizer_config.json, may need none, or a file of another name: loading tells.

    Raises ConfigError if the local folder `path` holds neither.
    """
    folder = find_model_folder(path)
    if folder is None or any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return True
    if isinstance(named, str) and named:
        return False
    raise no_tokenizer(path, f"no {', '.join(_TOKENIZER_FILES[:3])}, ..., and no tokenizer_class that is named")


def no_tokenizer(path: str, why: str) -> ConfigError:
    """Of the local folder `path`."""
    return ConfigError(
        f"model folder {path!r} has no tokenizer ({why}); save one that has its vocabulary in a file there with "
        "`tokenizer.save_pretrained(folder)`"
    )


def _suggestion(path: str) -> str:
    """The folder that was meant, if there is one of nearly that name."""
    folder = path_of(path)
    found = Path(folder.anchor)
    for part in folder.relative_to(folder.anchor).parts if folder.anchor else folder.parts:
        try:
            names = [entry.name for entry in found.iterdir() if entry.is_dir()]
        except OSError:
            return ""
        near = [part] if part in (*names, "..") else difflib.get_close_matches(part, names, n=1, cutoff=0.75)
        if not near:
            return ""
        found = found / near[0]
    return f"; did you mean {str(found)!r}?" if (found / "config.json").is_file() else ""


def _could_be_on_hub(path: str) -> bool:
    """Whether to ask the Hub, which takes long to fail: `org/name`, unless `org` is a folder here."""
    organisation, _, name = path.partition("/")
    return bool(name) and "/" not in name and not path.startswith((".", "~", "/")) and not Path(organisation).is_dir()
