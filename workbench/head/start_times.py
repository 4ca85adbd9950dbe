"""How long the parts of a start have taken, for the head's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_RANK_STEPS = {
    "begun": "ranks begin",
    "forked": "ranks are forked",
    "imported": "ranks have imported their modules",
    "in MPI": "ranks have initialised MPI",
    "addressed": "ranks know the scheduler's address",
    "serving": "ranks have made their workers",
}


def lines(head: Mapping[str, float], ranks: Iterable[Mapping[str, float]], ready: float) -> list[str]:
    r"""Return what happened when, a line each.

    Parameters
    ----------
    head
        Times, in seconds since the epoch, by what the head had done then; the first one is the beginning.
    ranks
        The same of each rank.
    ready
        When all ranks had registered.

    Examples
    --------
    >>> ranks = [{"begun": 10.2, "serving": 10.8}, {"begun": 10.3, "serving": 10.7}]
    >>> print(*lines({"the head begins": 10.0, "the scheduler listens": 10.5}, ranks, 11.0), sep="\n")
    0.00 s          the head begins
    0.20 to 0.30 s  ranks begin
    0.50 s          the scheduler listens
    0.70 to 0.80 s  ranks have made their workers
    1.00 s          all ranks have registered
    """
    told = list(ranks)
    begin = min(head.values())
    steps = [(time, time, what) for what, time in head.items()]
    for step, what in _RANK_STEPS.items():
        if times := [its[step] for its in told if step in its]:
            steps.append((min(times), max(times), what))
    steps.append((ready, ready, "all ranks have registered"))
    rows = []
    for first, last, what in sorted(steps):
        when = (
            f"{first - begin:.2f}" if f"{first:.2f}" == f"{last:.2f}" else f"{first - begin:.2f} to {last - begin:.2f}"
        )
        rows.append(f"{when + ' s':<15} {what}")
    return rows
