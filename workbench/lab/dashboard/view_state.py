"""The view of a browser, which the address of a page contains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import param

PAGES = {
    "overview": "Overview",
    "communication": "Communication",
    "cores": "Cores",
    "training": "Training",
    "waiting": "Waiting",
    "dask": "Dask",
}
"""Titles of the pages, by their names in the address."""


class ViewState(param.Parameterized):
    """The view of a browser.

    Attributes
    ----------
    page : str
        A key of `PAGES`.
    kind, measure, span : str
        Senders of the traffic, its measure, and its time span.
    pair : str
        Ranks or nodes of the traffic over time, for example ``"3,0"``: from, to; empty for the busiest pair.
    fit : str
        Identity of the fit; empty for the latest.
    minutes : int
        Length of the axes of time.
    until : float or None
        Time of the snapshot, in seconds since the epoch; None for the latest.
    theme : str or None
        Theme of the address, which does not change in a session; None without one.
    """

    page: Any = param.Selector(default="overview", objects=list(PAGES))
    kind: Any = param.Selector(default="both", objects=["both", "dask", "mpi"])
    measure: Any = param.Selector(default="bytes", objects=["bytes", "messages"])
    span: Any = param.Selector(default="recent", objects=["recent", "total"])
    pair = param.String(default="")
    fit = param.String(default="")
    minutes: Any = param.Selector(default=2, objects=[1, 2, 5, 10])
    until = param.Number(default=None, allow_None=True)
    theme: Any = param.Selector(default=None, objects=["light", "dark"], allow_None=True)

    @classmethod
    def at(cls, query: Mapping[str, str]) -> ViewState:
        """Return the view of an address; values that are not valid are ignored."""
        view_state = cls()
        for name, text in query.items():
            if name not in view_state.param or name == "name":
                continue
            try:
                setattr(view_state, name, _READ.get(name, str)(text))
            except ValueError:
                continue
        return view_state

    @property
    def query(self) -> str:
        """The query of the address, with all values that are not defaults."""
        changed: dict[str, Any] = {
            name: value
            for name, value in self.param.values().items()
            if name != "name" and value != self.param[name].default
        }
        return f"?{urlencode(changed, safe=',')}" if changed else ""

    def cell(self, between: Sequence[str]) -> tuple[int, int] | None:
        """Return row and column of `pair` in a matrix of these names; None if they do not contain the pair."""
        source, _, target = self.pair.partition(",")
        return (between.index(source), between.index(target)) if {source, target} <= set(between) else None


def _until(text: str) -> float:
    until = float(text)
    if not 0 <= until < math.inf:
        raise ValueError(f"until takes seconds since the epoch, not {text}")
    return until


# Parsers of values in an address that are not text.
_READ: dict[str, Callable[[str], Any]] = {"minutes": int, "until": _until}
