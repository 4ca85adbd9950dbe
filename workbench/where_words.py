"""Where ranks are, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def words(places: Mapping[int, Mapping[str, Any] | None]) -> str:
    return str(places)
