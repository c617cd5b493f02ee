"""Commands of a user's who is not root."""

from __future__ import annotations

import sys

USER = 54321
"""Nobody's here."""
_AS_USER = f"""
import os, sys
from headrace.sandbox import linux
if os.geteuid() == 0:
    linux.keep_rights_when_becoming()
    linux.become({USER}, reads_all=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def as_another(line: list[str]) -> list[str]:
    """The command, of `USER` where root runs it."""
    return [sys.executable, "-c", _AS_USER, *line]
