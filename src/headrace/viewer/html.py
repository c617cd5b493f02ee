"""What makes a page of HTML that can only show: the names of its own script and style, and data that no tag can end."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any


def policy(*, script: str, style: str) -> str:
    """A content security policy under which this one script and this one style sheet are used and nothing is fetched.
    As an attribute's value in double quotes it needs no escaping."""
    return (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        "form-action 'none'"
    )


def json_element(name: str, values: Any) -> str:
    """JSON, to be read by the page's script, in an element with the id `name` that nothing runs."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    text = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
