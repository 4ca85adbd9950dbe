"""Small words of messages."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "rank"), count(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
