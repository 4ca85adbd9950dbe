"""What a browser shows: all that the address of a shared view has."""

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
"""Titles of the pages, by what the address calls them."""


class ViewState(param.Parameterized):
    """What a browser shows.

    Attributes
    ----------
    page : str
        A key of `PAGES`.
    kind, measure, span : str
        Whose traffic, in what, and since when.
    pair : str
        Ranks or nodes whose traffic is shown over time, as ``"w1.3,0"``: from, to; or nothing.
    fit : str
        Identity of the fit that is shown; nothing for the last one.
    minutes : int
        Of the axes of time.
    until : float or None
        The moment that is shown, in seconds since the epoch; None for the last one.
    theme : str or None
        As the address has it; it does not change in a session. None if the address has none.
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
        """The query of the address: what differs from the defaults."""
        changed: dict[str, Any] = {
            name: value
            for name, value in self.param.values().items()
            if name != "name" and value != self.param[name].default
        }
        return f"?{urlencode(changed, safe=',')}" if changed else ""

    def cell(self, between: Sequence[str]) -> tuple[int, int] | None:
        """Return row and column of `pair` in a matrix of these names, or None if it is not in there."""
        source, _, target = self.pair.partition(",")
        return (between.index(source), between.index(target)) if {source, target} <= set(between) else None


def _moment(text: str) -> float:
    moment = float(text)
    if not 0 <= moment < math.inf:
        raise ValueError(f"a moment is a number of seconds since the epoch, not {text}")
    return moment


# How a value of an address is read, where that is not text.
_READ: dict[str, Callable[[str], Any]] = {"minutes": int, "until": _moment}
