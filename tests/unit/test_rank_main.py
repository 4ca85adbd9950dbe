"""What a rank may end beside itself."""

from __future__ import annotations

import dataclasses
import os

from workbench.host import ProcessId
from workbench.rank.__main__ import _is_of_the_world


def test_an_orphan_leaves_its_new_parent_alone() -> None:
    daemon, head = os.getpid(), ProcessId.of(os.getppid())
    assert _is_of_the_world(daemon, head)
    assert not _is_of_the_world(daemon, ProcessId.here()), "a head that is not among the parents"
    assert _is_of_the_world(daemon, dataclasses.replace(head, host="node2", pid=0)), "the daemon of another host"
