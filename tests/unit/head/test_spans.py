"""A head that runs for days keeps the spans of the latest tasks, and of those whose results exist."""

from __future__ import annotations

from distributed import span, wait
from support.processes import until

from workbench.head.scheduler import RecentSpans


def test_spans_of_forgotten_tasks_go_unless_they_have_a_name(client, local_cluster, monkeypatch):
    scheduler = local_cluster.scheduler
    spans = RecentSpans(scheduler, keep=2)
    monkeypatch.setitem(scheduler.extensions, "spans", spans)

    def run(number):
        wait(client.submit(abs, number, key=f"task{number}-0"))
        until("the task is forgotten", lambda: f"task{number}-0" not in scheduler.tasks)

    kept = client.submit(abs, -1, key="kept-0")
    wait(kept)
    with span("named"):
        run(100)
    with span("default"), span("child"):
        run(101)
    for number in range(20):
        run(number)

    assert len(spans.spans_search_by_name["default",]) <= 7
    assert len(spans.root_spans) == len(spans.spans_search_by_name["default",]) + 1
    assert len(spans.spans) == len(spans.root_spans) + 1
    (child,) = spans.spans_search_by_name["default", "child"]
    assert child.parent in spans.root_spans
    assert scheduler.task_groups["kept"].span_id in spans.spans
    worker = next(iter(scheduler.workers.values()))
    spans.heartbeat(worker, {("execute", "forgotten", "abs", "thread-cpu", "seconds"): 1.0})
