"""Numbers in text: whole, with decimals, as fractions of whole numbers, and as powers of ten."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

_MINUS = "\u2212"
# A sign belongs to the number unless something is subtracted: the 3 of "7-3" is positive.
_SIGN = rf"(?:(?<![\w)\]])[-+{_MINUS}])?"
_SHORT = r"[0-9]{1,18}(?![0-9])"
_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_EXPONENT = r"(?:[eE](?P<e>[-+]?[0-9]{1,3})(?![0-9]))"
_POWER = rf"[-+{_MINUS}]?[0-9]{{1,3}}(?![0-9])"
_TIMES_TEN = rf"(?: ?(?:\\times|\\cdot|[x*\u00d7]) ?10\^(?:(?P<power>{_POWER})|\{{(?P<braced>{_POWER})\}}))"
_IN_LATEX = (
    rf"\\[dt]?frac ?(?:\{{ ?(?P<top>{_SHORT}) ?\}} ?\{{ ?(?P<bottom>{_SHORT}) ?\}}|(?P<above>[0-9]) ?(?P<below>[0-9]))"
)
_IN_LINE = rf"(?<![0-9]/)(?P<over>{_SHORT}) ?/ ?(?P<under>{_SHORT})(?!\.[0-9]| ?/ ?[0-9])"
_MIXED_WITH = rf"(?:(?P<whole>{_SHORT})(?: |\\[ ,;]| ?(?=\\)))?"
_NUMBER = re.compile(
    r"[A-Za-z}]\^\{?[-+]?[0-9]+"  # the 2 of cm^2 is none
    rf"|(?P<sign>{_SIGN})(?:{_MIXED_WITH}(?:{_IN_LATEX}|{_IN_LINE})|(?P<plain>{_PLAIN})(?:{_EXPONENT}|{_TIMES_TEN})?)"
)
_SEPARATOR = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
"""Of thousands, that is no comma."""
_BEFORE = re.compile(rf"(?:[\^/\u221a]|\\sqrt|\\[dt]?frac|[0-9][-+*:{_MINUS}\u00d7]|\}} ?\{{) ?[({{\[]? ?$")
_AFTER = re.compile(r" ?(?:\^(?! ?\{? ?\\circ)|\\pi|\u03c0|\\sqrt|\u221a|\\[dt]?frac)")
"""What stands beside a number that is a part of more."""
_LONGEST = 1_000
"""Characters. To compute with whole numbers takes a time that grows with the square of their length."""


def last_number(text: str) -> Fraction | None:
    """None if there is none, or it is a fraction over 0 or has more than a thousand digits."""
    found = _last(_SEPARATOR.sub(",", text))
    return None if found is None else _value(found)


def number_of(answer: str) -> Fraction:
    """The last number of an answer. Raises ValueError if there is none, or it is a part of more."""
    text = _SEPARATOR.sub(",", answer)
    found = _last(text)
    value = None if found is None else _value(found)
    if found is None or value is None:
        raise ValueError(f"the answer {answer!r} has no number")
    if _BEFORE.search(text[: found.start()]) or _AFTER.match(text, found.end()):
        raise ValueError(
            f"the answer {answer!r} is more than a number: {found[0].strip()!r} is a part of it; write it as one, or "
            "compare by math"
        )
    return value


def _last(text: str) -> re.Match[str] | None:
    last = None
    for found in _NUMBER.finditer(text):
        if found["sign"] is not None:
            last = found
    return last


def _value(found: re.Match[str]) -> Fraction | None:
    from decimal import Decimal  # every process that scores starts through this file, and few need it
    from fractions import Fraction

    over = found["top"] or found["above"] or found["over"]
    under = found["bottom"] or found["below"] or found["under"]
    if under is None and len(found["plain"]) > _LONGEST:
        return None
    if under is None:
        exponent = found["e"] or found["power"] or found["braced"] or "0"
        value = Fraction(Decimal(f"{found['plain'].replace(',', '')}e{exponent.replace(_MINUS, '-')}"))
    elif int(under) == 0:
        return None
    else:
        value = Fraction(int(over), int(under))
        if found["whole"] is not None and value < 1:
            value += int(found["whole"])
    return value if found["sign"] in ("", "+") else -value
