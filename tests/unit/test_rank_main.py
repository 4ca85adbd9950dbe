"""What a rank may end beside itself, and what may end it."""

from __future__ import annotations

import dataclasses
import os
import threading

from support.patience import DEADLINE

from workbench.host import ProcessId
from workbench.rank import worker
from workbench.rank.__main__ import _is_of_the_world


def test_an_orphan_leaves_its_new_parent_alone() -> None:
    daemon, head = os.getpid(), ProcessId.of(os.getppid())
    assert _is_of_the_world(daemon, head)
    assert not _is_of_the_world(daemon, ProcessId.here()), "a head that is not among the parents"
    assert _is_of_the_world(daemon, dataclasses.replace(head, host="node2", pid=0)), "the daemon of another host"


def test_a_rank_that_has_closed_its_worker_is_not_cut_off_while_it_finalises_mpi(monkeypatch):
    timer = threading.Timer(DEADLINE, lambda: None)
    monkeypatch.setattr(worker, "_timers", [timer])
    worker.has_closed()
    assert timer.finished.is_set()
