"""Versions to where the trainer's memory is not seen: relays pass them on, in a chain over a process group."""
