"""Models that are named as on the Hugging Face Hub: whether it has them, and where they are when it cannot be asked."""

from __future__ import annotations

import functools
from pathlib import Path

from headrace.config import ConfigError

_ASK_S = 5.0


@functools.cache  # whoever reads a file of the model asks, and an answer that does not come takes seconds
def offline_snapshot(name: str) -> Path | None:
    """None if the Hub says that it has the model `name`; the folder in its cache if it cannot be reached.

    Raises ConfigError if there is neither. One question of at most 5 s: transformers asks for each file six times, and
    takes half a minute to give up.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    missing = f"model {name!r}: there is no such folder here, and the Hugging Face Hub"
    try:
        HfApi().model_info(name, timeout=_ASK_S)
    except HFValidationError as error:
        raise ConfigError(f"{missing} has no names like that; check the spelling") from error
    except GatedRepoError:
        return None  # who reads its files is told what is missing
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{missing} has no model of that name, or not for you; check the spelling, and for a private model your "
            "token"
        ) from error
    except Exception as error:  # of whichever HTTP library huggingface_hub is built on
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return Path(cached).parent
        reason = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise ConfigError(
            f"{missing} cannot be reached ({reason}), nor has its cache a model of that name; check the spelling of "
            "the folder, or the network"
        ) from error
    return None
