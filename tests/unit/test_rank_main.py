"""What a rank may end beside itself."""

from __future__ import annotations

import dataclasses
import os

from workbench.host import ProcessId
from workbench.rank.__main__ import _has_a_daemon


def test_an_orphan_leaves_its_new_parent_alone() -> None:
    head = ProcessId.of(os.getppid())
    assert _has_a_daemon(head)
    assert not _has_a_daemon(ProcessId.here()), "a head that is not among the parents"
    assert _has_a_daemon(dataclasses.replace(head, host="node2", pid=0)), "on another host the daemon is the parent"
