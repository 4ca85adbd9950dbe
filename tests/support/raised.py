"""Errors compared by their fields: a sentence may change, and has one separate test."""

from __future__ import annotations

import pytest


def raises(kind, /, **fields):
    """Require an error of a class, with these attributes, e.g. ``option="ranks", given=3``; like `pytest.raises`."""

    def has_fields(error):
        assert {name: getattr(error, name) for name in fields} == fields
        return True

    return pytest.raises(kind, check=has_fields)
