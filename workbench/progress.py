"""A cluster's start on the screen, in a terminal and in a notebook alike."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self


class Progress:
    """One line: the state in words, k of n ranks, a bar, the seconds.

    Parameters
    ----------
    ranks
        Number of ranks that are awaited.
    quiet
        Show nothing.
    """

    def __init__(self, ranks: int, *, quiet: bool) -> None:
        self._ranks, self._quiet = ranks, quiet

    def __enter__(self) -> Self:
        from tqdm import tqdm

        self._bar = tqdm(
            total=self._ranks,
            desc="submitted: ",
            file=sys.stdout,
            disable=self._quiet,
            bar_format="{desc}{n_fmt} of {total_fmt} ranks |{bar:20}| {elapsed}",
        )
        return self

    def show(self, state: str, up: int, ranks: int | None = None) -> None:
        """Show that `up` ranks are there now."""
        if not self._quiet and (f"{state}: ", up) != (self._bar.desc, self._bar.n):
            self._bar.n = up
            self._bar.total = ranks or self._ranks
            self._bar.set_description(state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._quiet:
            self._bar.set_description("failed")
        self._bar.close()
