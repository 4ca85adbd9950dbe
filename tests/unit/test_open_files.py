"""How many connections the processes of a cluster may have."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from workbench import open_files
from workbench.errors import InvalidRequest

# Each process of a cluster looks for its record before it starts anything.
PROGRAM = """
import os, resource, sys
from workbench.head import __main__ as head, keeper
from workbench.rank import __main__ as rank

def look(*_):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sys.exit()

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
head.mpi.loaded_library = head._import = lambda *_: None
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

    open_files.check_ranks(448)
    with pytest.raises(InvalidRequest, match=r"449 ranks.*1024 files.*448 ranks.*limits\.conf"):
        open_files.check_ranks(449)
