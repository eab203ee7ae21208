"""Lines for people."""

from __future__ import annotations


def say(line: str) -> None:
    """A line of progress or of a result, at once."""
    print(line, flush=True)
