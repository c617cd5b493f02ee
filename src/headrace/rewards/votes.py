"""The answer that a built-in reward takes out of a response, so that equal answers can be counted."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from headrace.rewards.builtin import chosen_letter
from headrace.rewards.plain_numbers import last_number

END = 4_000
"""Characters of a response, from its end, in which a letter or a box is looked for: text that a model made to be slow
takes a time that grows with the square of its length, in the process of the run."""

Answer = Callable[[str], Hashable]
"""Of a response; None where it has none."""


def answer_of(function: str) -> Answer:
    r"""Of the built-in reward `function`: the whole response without white space around it (`exact`), its last number
    (`numeric`), the letter that it names (`choice`), or what stands in its last `\boxed{}`, white space left out
    (`boxed_math`; formulas that are equal and written otherwise are two answers).

    Raises ValueError for any other.
    """
    match function:
        case "exact":
            return lambda response: response.strip() or None
        case "numeric":
            return lambda response: last_number(response)
        case "choice":
            return lambda response: chosen_letter(response[-END:])
        case "boxed_math":
            return _boxed
    raise ValueError(f"the reward {function!r} takes no answer out of a response")


def _boxed(response: str) -> str | None:
    from headrace.rewards.formulas import last_boxed  # needs the extra `math`, as its reward does

    given = last_boxed(response[-END:])
    return None if given is None else "".join(given.split())
