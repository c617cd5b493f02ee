"""Headrace as a Python library: what the commands do, called with objects. `headrace` itself names what is public."""
