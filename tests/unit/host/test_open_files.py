"""How many connections the processes of a cluster may have."""

from __future__ import annotations

import resource
import subprocess
import sys
from types import SimpleNamespace

from support.raised import raises

from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.head import __main__ as head
from workbench.head.cluster_world import ClusterWorld
from workbench.host import processes

# Each process of a cluster looks for its record before it starts anything.
PROGRAM = """
import os, resource, sys
from workbench.head import __main__ as head, keeper
from workbench.rank import __main__ as rank

def look(*_):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sys.exit()

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
head.mpi_library.loaded_library = head._import = lambda *_: None
rank_words = ["--world", "0", "--ranks", "1", "--timeout", "1"]
for main, words in ((head.main, []), (keeper.main, ["1", "1"]), (lambda: rank.main(os.getpid()), rank_words)):
    sys.argv = ["program", "name", "id", *words]
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    head.await_record = keeper.await_record = rank.await_record = look
    try:
        main()
    except SystemExit:
        pass
"""


def test_head_keeper_and_ranks_may_open_as_many_files_as_the_system_allows_before_they_start_anything():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert list(map(int, ran.stdout.split())) == 3 * [65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)]


def test_more_ranks_than_the_head_can_have_connections_to_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))

    processes.check_open_files(448)
    with raises(InvalidRequest, option="ranks", given=449, allowed="up to 448"):
        processes.check_open_files(449)


async def test_ranks_that_would_be_too_many_beside_the_present_ones_are_refused_before_they_start(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    world = SimpleNamespace(index=0, ranks=200, ready=True)
    silent = dict.fromkeys(("queues", "report", "changed", "replaced", "run"), print)
    current = ClusterWorld(Record(name="many", ranks=200), world, None, is_ending=bool, **silent)

    with raises(InvalidRequest, option="ranks", given=449):
        await current.move(249)


def test_a_head_refuses_ranks_that_are_too_many_before_it_starts_them(monkeypatch):
    said, limit = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(processes, "allow_many_files", lambda: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, limit[1]))
    monkeypatch.setattr(head, "await_record", lambda *_: Record(name="many", ranks=449, state="submitted"))
    monkeypatch.setattr(head.mpi_library, "loaded_library", lambda: "")
    monkeypatch.setattr(head, "_import", lambda _: None)
    monkeypatch.setattr(head.stub, "ONE_THREAD", {})
    monkeypatch.setattr(head.signal, "signal", lambda *_: None)
    monkeypatch.setattr(head, "_fail", lambda _, error: said.append(str(error)) or 1)
    monkeypatch.setattr(sys, "argv", ["workbench.head", "many"])

    assert head.main() == 1
    assert "449 ranks" in said[0]
