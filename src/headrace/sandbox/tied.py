"""Becomes a command that ends with the process which started it, for commands that do not see to that themselves.

Run as `python -I -S tied.py COMMAND...`, with an absolute path first. Imports the standard library alone.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as type checkers know it
if TYPE_CHECKING:
    from headrace.sandbox import linux
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import linux  # a script: the package around it costs a start more than the rest

    del sys.path[0]

if __name__ == "__main__":
    linux.die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
