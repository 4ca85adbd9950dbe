"""The result of a profile: a frame with a row for each rank that shows itself as a table like that of mpiP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd
from dask.utils import format_bytes

from workbench.mpi.operation_names import OPERATIONS, WAITS
from workbench.text import count, rank_name

WaitedSeconds = Mapping[tuple[int, int, str], Sequence[float]]
"""By world, rank and operation: seconds waited for other ranks, and in the operation, in a sample of them."""

# Rows that are shown; the frames have all.
_RANKS_SHOWN, _OPERATIONS_SHOWN, _SITES_SHOWN = 32, 10, 5

_COLUMNS = (
    "world",
    "rank",
    "host",
    "seconds",
    "compute",
    "mpi",
    "mpi_percent",
    "waiting",
    "messages",
    "bytes",
    "top_operation",
)
_TITLES = {
    "mpi": "MPI",
    "mpi_percent": "MPI %",
    "percent": "% of MPI",
    "top_operation": "top operation",
    "place": "call site",
}
_FORMATS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("seconds", "compute", "mpi", "waiting"), "{:.3f}".format),
    **dict.fromkeys(("mpi_percent", "percent"), "{:.1f}".format),
    **dict.fromkeys(("calls", "messages"), "{:.0f}".format),
    "bytes": lambda nbytes: format_bytes(int(nbytes)),
}


class ProfileFrame(pd.DataFrame):
    """What ranks did in some time, a row for each.

    Its columns are ``world``, ``rank``, ``host``, ``seconds`` (that were measured), ``compute`` (seconds in which code
    of users ran, outside of MPI), ``mpi`` (seconds in MPI), ``mpi_percent`` (of ``seconds``), ``waiting`` (seconds in
    MPI for which other ranks had not come yet), ``messages`` and ``bytes`` (sent by MPI), and ``top_operation``, in
    which the rank was longest.

    Parameters
    ----------
    counts
        Of each rank: as `workbench.metrics.profile_rank.end` returns it.
    missing
        Names of the workers that were not there all the time.
    met
        How long ranks have waited in that time.

    Attributes
    ----------
    operations, sites : pandas.DataFrame
        Of all ranks together, those with most seconds first: a row for each operation, and for each place in the code
        of the user from which one was called. ``calls``, ``seconds``, ``percent`` (of the seconds in MPI), ``bytes``.
    missing : list of str
        As given.

    Notes
    -----
    It is shown, in text and in HTML, with the ranks, the ten operations and the five places that took longest. What is
    made from it, as by ``sort_values``, is a plain frame.
    """

    _metadata: ClassVar[list[str]] = ["operations", "sites", "missing"]

    def __init__(
        self,
        counts: Iterable[Mapping[str, Any]],
        missing: Sequence[str] = (),
        met: WaitedSeconds = MappingProxyType({}),
    ) -> None:
        ranks = sorted(counts, key=lambda entry: (entry["world"], entry["rank"]))
        super().__init__([_row(entry, met) for entry in ranks], columns=_COLUMNS)  # type: ignore[call-arg]  # so say its stubs
        self.operations = _ranking(["operation"], (entry["operations"] for entry in ranks))
        self.sites = _ranking(["operation", "place"], (entry["sites"] for entry in ranks))
        self.missing = list(missing)

    def __repr__(self) -> str:
        return "\n\n".join([self._summary(), *(table.to_string(index=False) for table in self._tables())])

    def _repr_html_(self) -> str:
        # the class of these tables has colours of the notebook's theme
        with pd.option_context("display.max_colwidth", None):
            tables = [table.to_html(index=False, border=0) for table in self._tables()]
        return f"<div>{escape(self._summary())}</div>{''.join(tables)}"

    def _summary(self) -> str:
        seconds, share = self["seconds"].max() if len(self) else 0.0, _percent(self["mpi"].sum(), self["seconds"].sum())
        words = [f"{count(len(self), 'rank')}, {seconds:.3f} s, {share:.1f} % of it in MPI"]
        if len(self) > _RANKS_SHOWN:
            words.append(f"the {_RANKS_SHOWN} ranks that were longest in MPI")
        if self.missing:
            words.append(f"without {', '.join(self.missing)}, not there all the time")
        return "; ".join(words)

    def _tables(self) -> list[pd.DataFrame]:
        tables = [self._ranks(), self.operations.head(_OPERATIONS_SHOWN), self.sites.head(_SITES_SHOWN)]
        return [_shown(table) for table in tables if len(table)]

    def _ranks(self) -> pd.DataFrame:
        plain = pd.DataFrame(self)
        longest = plain.nlargest(_RANKS_SHOWN, "mpi").sort_index() if len(plain) > _RANKS_SHOWN else plain
        sums = plain[["seconds", "compute", "mpi", "waiting", "messages", "bytes"]].sum()
        top = next(iter(self.operations["operation"]), "")
        total = {**sums, "mpi_percent": _percent(sums["mpi"], sums["seconds"]), "top_operation": top}
        names = list(map(rank_name, longest["world"], longest["rank"]))
        rows = longest.drop(columns="world").assign(rank=names).to_dict("records")
        return pd.DataFrame([*rows, {"rank": "all", "host": "", **total}])


def _row(counts: Mapping[str, Any], met: WaitedSeconds) -> dict[str, Any]:
    operations = counts["operations"]
    _, nbytes, mpi = map(sum, zip((0, 0, 0.0), *operations.values(), strict=True))
    return {
        **{key: counts[key] for key in ("world", "rank", "host", "seconds", "messages")},
        "compute": max(0.0, counts["busy"] - mpi),
        "mpi": mpi,
        "mpi_percent": _percent(mpi, counts["seconds"]),
        "waiting": sum(_waiting(counts, name, seconds, met) for name, (_, _, seconds) in operations.items()),
        "bytes": nbytes,
        "top_operation": max(operations, key=lambda name: operations[name][2], default=""),
    }


def _waiting(counts: Mapping[str, Any], operation: str, seconds: float, met: WaitedSeconds) -> float:
    """Return how long a rank has waited in an operation that took so long in all: its share is that of the sample."""
    if operation in WAITS:
        return seconds
    key = operation if operation in OPERATIONS else "other"
    waited, inside = met.get((counts["world"], counts["rank"], key), (0.0, 0.0))
    return seconds * waited / inside if inside else 0.0


def _ranking(keys: list[str], counted: Iterable[Mapping[Any, Sequence[float]]]) -> pd.DataFrame:
    """Return the sums of all ranks by their keys, those with most seconds first."""
    totals: defaultdict[Any, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for of_rank in counted:
        for key, counts in of_rank.items():
            totals[key] = [one + other for one, other in zip(totals[key], counts, strict=True)]
    whole = sum(seconds for _, _, seconds in totals.values())
    rows = [
        (*((key,) if isinstance(key, str) else key), calls, seconds, _percent(seconds, whole), nbytes)
        for key, (calls, nbytes, seconds) in sorted(totals.items(), key=lambda entry: entry[1][2], reverse=True)
    ]
    return pd.DataFrame(rows, columns=[*keys, "calls", "seconds", "percent", "bytes"])


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in words, with the names that its columns have for readers."""
    return pd.DataFrame(
        {_TITLES.get(key, key): [_FORMATS.get(key, str)(value) for value in table[key]] for key in table.columns}
    )
