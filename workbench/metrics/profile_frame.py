"""The result of a profile: a frame with a row for each rank, shown as a table like that of mpiP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from operator import itemgetter
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd
from dask.utils import format_bytes

from workbench.mpi.counters import OPERATIONS, WAITS
from workbench.text import count

WaitedSeconds = Mapping[tuple[int, str], Sequence[float]]
"""By rank and operation: seconds spent waiting for other ranks, and in it, for a sample of the calls."""

# Rows that are shown; the frames hold all rows.
_RANKS_SHOWN, _OPERATIONS_SHOWN, _SITES_SHOWN = 32, 10, 5

_COLUMNS = (
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
    """A profile, with a row for each rank.

    The columns are ``rank``, ``host``, ``seconds`` (length of the profile), ``compute`` (seconds in user
    code outside MPI), ``mpi`` (seconds in MPI), ``mpi_percent`` (of ``seconds``), ``waiting`` (seconds in MPI spent
    waiting for other ranks), ``messages`` and ``bytes`` (sent over MPI), and ``top_operation`` (the operation with the
    most seconds).

    Parameters
    ----------
    counts
        For each rank the value of `workbench.metrics.profile_rank.end`.
    missing
        Names of the workers that were missing at the end of the profile.
    waited
        How long ranks have waited during the profile.

    Attributes
    ----------
    operations, sites : pandas.DataFrame
        Sums over all ranks, sorted by seconds: a row for each operation, and for each call site in the user's code.
        Columns ``calls``, ``seconds``, ``percent`` (of the seconds in MPI), ``bytes``.
    missing : list of str
        The argument `missing`.

    Notes
    -----
    Text and HTML show the ranks, and the ten operations and five call sites that took longest. Frames derived from a
    profile, for example by ``sort_values``, are plain frames.
    """

    _metadata: ClassVar[list[str]] = ["operations", "sites", "missing"]

    def __init__(
        self,
        counts: Iterable[Mapping[str, Any]],
        missing: Sequence[str] = (),
        waited: WaitedSeconds = MappingProxyType({}),
    ) -> None:
        ranks = sorted(counts, key=itemgetter("rank"))
        # The stubs of pandas know no parameters of the constructor.
        super().__init__([_row(entry, waited) for entry in ranks], columns=_COLUMNS)  # type: ignore[call-arg]
        self.operations = _ranking(["operation"], (entry["operations"] for entry in ranks))
        self.sites = _ranking(["operation", "place"], (entry["sites"] for entry in ranks))
        self.missing = list(missing)

    def __repr__(self) -> str:
        return "\n\n".join([self._summary(), *(table.to_string(index=False) for table in self._tables())])

    def _repr_html_(self) -> str:
        # pandas' class for tables follows the theme of the notebook.
        with pd.option_context("display.max_colwidth", None):
            tables = [table.to_html(index=False, border=0) for table in self._tables()]
        return f"<div>{escape(self._summary())}</div>{''.join(tables)}"

    def _summary(self) -> str:
        seconds, share = self["seconds"].max() if len(self) else 0.0, _percent(self["mpi"].sum(), self["seconds"].sum())
        facts = [f"{count(len(self), 'rank')}, {seconds:.3f} s, {share:.1f} % in MPI"]
        if len(self) > _RANKS_SHOWN:
            facts.append(f"only the {_RANKS_SHOWN} ranks with the most time in MPI are shown")
        if self.missing:
            facts.append(f"without {', '.join(self.missing)}, missing at the end of the profile")
        return "; ".join(facts)

    def _tables(self) -> list[pd.DataFrame]:
        tables = [self._ranks(), self.operations.head(_OPERATIONS_SHOWN), self.sites.head(_SITES_SHOWN)]
        return [_formatted(table) for table in tables if len(table)]

    def _ranks(self) -> pd.DataFrame:
        plain = pd.DataFrame(self)
        longest = plain.nlargest(_RANKS_SHOWN, "mpi").sort_index() if len(plain) > _RANKS_SHOWN else plain
        sums = plain[["seconds", "compute", "mpi", "waiting", "messages", "bytes"]].sum()
        top = next(iter(self.operations["operation"]), "")
        total = {**sums, "mpi_percent": _percent(sums["mpi"], sums["seconds"]), "top_operation": top}
        return pd.DataFrame([*longest.to_dict("records"), {"rank": "all", "host": "", **total}])


def _row(counts: Mapping[str, Any], waited: WaitedSeconds) -> dict[str, Any]:
    operations = counts["operations"]
    _, nbytes, mpi = map(sum, zip((0, 0, 0.0), *operations.values(), strict=True))
    return {
        **{key: counts[key] for key in ("rank", "host", "seconds", "messages")},
        "compute": max(0.0, counts["busy"] - mpi),
        "mpi": mpi,
        "mpi_percent": _percent(mpi, counts["seconds"]),
        "waiting": sum(_waiting(counts, name, seconds, waited) for name, (_, _, seconds) in operations.items()),
        "bytes": nbytes,
        "top_operation": max(operations, key=lambda name: operations[name][2], default=""),
    }


def _waiting(counts: Mapping[str, Any], operation: str, seconds: float, waited: WaitedSeconds) -> float:
    """Return how many of the seconds in an operation were waits of the rank, by the fraction in the sample."""
    if operation in WAITS:
        return seconds
    key = operation if operation in OPERATIONS else "other"
    waiting, inside = waited.get((counts["rank"], key), (0.0, 0.0))
    return seconds * waiting / inside if inside else 0.0


def _ranking(keys: list[str], counts_of_ranks: Iterable[Mapping[Any, Sequence[float]]]) -> pd.DataFrame:
    """Return the sums over all ranks by key, sorted by seconds."""
    totals: defaultdict[Any, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for rank_counts in counts_of_ranks:
        for key, counts in rank_counts.items():
            totals[key] = list(map(sum, zip(totals[key], counts, strict=True)))
    all_seconds = sum(seconds for _, _, seconds in totals.values())
    rows = [
        (*((key,) if isinstance(key, str) else key), calls, seconds, _percent(seconds, all_seconds), nbytes)
        for key, (calls, nbytes, seconds) in sorted(totals.items(), key=lambda entry: entry[1][2], reverse=True)
    ]
    return pd.DataFrame(rows, columns=[*keys, "calls", "seconds", "percent", "bytes"])


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table as text, with the titles of its columns."""
    return pd.DataFrame(
        {_TITLES.get(key, key): [_FORMATS.get(key, str)(value) for value in table[key]] for key in table.columns}
    )
