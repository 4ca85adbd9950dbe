"""The spans of a scheduler, which show on Dask's own dashboard the work of tasks, without those of forgotten tasks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from distributed.spans import SpansSchedulerExtension

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState
    from distributed.spans import Span


class RecentSpans(SpansSchedulerExtension):
    """Spans of tasks; of the unnamed ones whose tasks are forgotten only the latest.

    Parameters
    ----------
    scheduler
        The scheduler.
    keep
        Number of unnamed spans that are kept in any case.

    Notes
    -----
    Dask keeps 6 kB for each graph that was submitted when no other task ran, as long as the scheduler runs.
    """

    def __init__(self, scheduler: Scheduler, keep: int = 200) -> None:
        super().__init__(scheduler)
        self._keep = self._many = keep

    def observe_tasks(self, *args: Any, **options: Any) -> Any:
        """Assign new tasks to spans."""
        annotations = super().observe_tasks(*args, **options)
        if len(self.spans_search_by_name["default",]) > self._many:
            self._forget()
        return annotations

    def heartbeat(self, ws: WorkerState, data: dict[tuple[Hashable, ...], float]) -> None:
        """Add the measurements of a rank; those of forgotten spans may be late."""
        super().heartbeat(ws, {key: value for key, value in data.items() if key[1] in self.spans})

    def _forget(self) -> None:
        defaults = self.spans_search_by_name["default",]
        forgotten = {span.id for span in defaults[: -self._keep] if not span.children and not self._has_tasks(span)}
        for spans in (defaults, self.spans_search_by_tag["default"], self.root_spans):
            spans[:] = [span for span in spans if span.id not in forgotten]
        for key in forgotten:
            del self.spans[key]
        # Each span is looked at a few times only, also if most of them stay.
        self._many = 2 * len(defaults)

    def _has_tasks(self, span: Span) -> bool:
        return any(self.scheduler.task_groups.get(group.name) is group for group in span.groups)
