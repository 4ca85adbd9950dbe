"""The times of the steps of a start, for the head's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_RANK_STEPS = {
    "begun": "ranks begin",
    "forked": "ranks are forked",
    "imported": "ranks have imported their modules",
    "in MPI": "ranks have initialized MPI",
    "addressed": "ranks know the scheduler's address",
    "serving": "ranks have made their workers",
}


def lines(head: Mapping[str, float], ranks: Iterable[Mapping[str, float]], ready: float) -> list[str]:
    r"""Return one line per step of a start.

    Parameters
    ----------
    head
        Times of the steps of the head, in seconds since the epoch, by step. The first one is the beginning.
    ranks
        The same for each rank.
    ready
        The time at which all ranks had registered.

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
    times_of_ranks = list(ranks)
    begin = min(head.values())
    steps = [(time, time, text) for text, time in head.items()]
    for step, text in _RANK_STEPS.items():
        if times := [times[step] for times in times_of_ranks if step in times]:
            steps.append((min(times), max(times), text))
    steps.append((ready, ready, "all ranks have registered"))
    rows = []
    for first, last, text in sorted(steps):
        period = (
            f"{first - begin:.2f}" if f"{first:.2f}" == f"{last:.2f}" else f"{first - begin:.2f} to {last - begin:.2f}"
        )
        rows.append(f"{period + ' s':<15} {text}")
    return rows
