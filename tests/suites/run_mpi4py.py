"""Run mpi4py's own tests inside SPMD calls, and compare with plain communicators on the same ranks.

``python tests/suites/run_mpi4py.py [--ranks 2,4] [--only PATTERN,PATTERN] [--repeat N]``: the tests of a class are a
call, and if that call fails, each of them is a call. A test that is right on plain communicators must be right in a
call; exceptions are listed below with a reason, or the run fails. A repeated test is right if each of its runs is.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import itertools
import os
import sys
from collections import deque
from collections.abc import Iterator

import comparison
import sources
from comparison import PASSED, SKIPPED
from distributed import Client

from workbench import MPICluster, run_on_ranks
from workbench.errors import CollectiveFailed, InvalidRequest
from workbench.mpi.call_state import CallCancelled

# Tests, as patterns, whose outcomes may differ, and why.
EXPECTED = {
    "test_c*.TestC*.testHandleValue": "mpi4py reads MPICH's number of a communicator that was made with a sign",
    "test_comm.TestComm*.testPickle": "MPI's own communicators are pickled by their names, those of a call have none",
    "test_comm_topo.TestTopo*": "what Create_cart and others return is of a subclass, and tests compare the very class",
    "test_exceptions.TestExcComm.testFreeSelf": "what stands for COMM_SELF is made by a split, and can be freed",
    "test_exceptions.TestExcComm.testFreeWorld": "that of a call cannot be freed either, but raises InvalidRequest",
    "test_objmodel.TestObjModel.testCAPI": "a handle becomes mpi4py's own class, and the test compares the very class",
    "test_objmodel.TestObjModel.testHandle": "as testCAPI: fromhandle returns mpi4py's own class",
    "test_objmodel.TestObjModel.testSafeFreeConstant": "what stands for COMM_SELF is no constant, and free() frees it",
    "test_p2p_obj.TestP2PObj*.testCommLock": "pickled collectives of a call take none of mpi4py's locks",
    "test_ulfm.TestULFMWorld*.testIAgree": "ranks differ in the order of Iagree and Barrier, in a call Ibarrier",
    "test_ulfm.TestULFM*.testRevoke": "Open MPI's twins succeed on what is revoked where they send nothing",
}
# Seconds for one call. Tests of windows take their turns by fences, which hold a core each: beside load that is slow.
PATIENCE = 30 * float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1"))


@contextlib.contextmanager
def stand_in(comm, folder: str, *, plain: bool) -> Iterator[None]:
    """Have the modules of tests find what programs find in a call, or MPI's own, and one of this rank alone."""
    import importlib
    import types

    import mpi4py
    from mpi4py import MPI

    for name in ("dtlib", "pkl5", "pool", "sync"):
        importlib.import_module(f"mpi4py.util.{name}")
    alone = comm.Split(comm.rank)
    stand_in = types.ModuleType(MPI.__name__)
    vars(stand_in).update(vars(MPI))
    if not plain:
        stand_in.COMM_WORLD, stand_in.COMM_SELF = MPI.COMM_WORLD, alone
    mpi4py.MPI = sys.modules["mpi4py.MPI"] = stand_in
    sys.path.insert(0, folder)
    os.environ["MPI4PY_TEST_SPAWN"] = "false"
    try:
        yield
    finally:
        mpi4py.MPI = sys.modules["mpi4py.MPI"] = MPI
        sys.path.remove(folder)
        # They hold this call's communicator.
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(folder):
                del sys.modules[name]
        if alone:
            alone.Free()


def names(comm, folder: str) -> list[str]:
    """Return the names of all tests."""
    import unittest

    def flat(suite):
        return [
            name for test in suite for name in (flat(test) if isinstance(test, unittest.TestSuite) else [test.id()])
        ]

    with stand_in(comm, folder, plain=False):
        return flat(unittest.TestLoader().discover(folder))


def run(comm, folder: str, names: list[str], *, plain: bool) -> list[str]:
    """Run tests on this rank; return what each of them came to, or raise the first error."""
    import unittest

    outcomes = []
    with stand_in(comm, folder, plain=plain):
        for name in names:
            result = unittest.TestResult()
            unittest.TestLoader().loadTestsFromName(name).run(result)
            unexpected = [(test, "unexpected success") for test in result.unexpectedSuccesses]
            if wrong := result.errors + result.failures + unexpected:
                raise AssertionError(wrong[0][1])
            outcomes.append(SKIPPED if result.skipped or result.expectedFailures else PASSED)
    return outcomes


def outcomes(ranks: int, patterns: list[str], repeat: int, *, plain: bool) -> dict[str, str]:
    """Return the outcome of each test of some patterns on a separate cluster."""
    folder = str(sources.distribution("mpi4py") / "test")
    found: dict[str, str] = {}
    with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
        known = run_on_ranks(names, folder, client=client, result="root")
        wanted = [name for name in known if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

        # A call fails with the first test that does, so those that may fail are separate calls.
        def call(name: str) -> str:
            return name if comparison.reason(name, EXPECTED) else name.rpartition(".")[0]

        calls = deque([list(tests) for _, tests in itertools.groupby(wanted, call)] * repeat)
        while calls:
            tests = calls.popleft()
            try:
                every = run_on_ranks(run, folder, tests, client=client, timeout=PATIENCE, plain=plain)
                for test, *words in zip(tests, *every, strict=True):
                    comparison.add(found, {test: SKIPPED if SKIPPED in words else PASSED})
            except Exception as error:  # noqa: BLE001  (whatever it is, the comparison shows it)
                if plain or not isinstance(error, AssertionError):
                    # Nothing ends what waits on a plain communicator. A world that has lost a rank starts by itself.
                    with contextlib.suppress(InvalidRequest):
                        cluster.restart()
                    client.wait_for_workers(ranks, timeout=6 * PATIENCE)
                if len(tests) > 1:
                    # What loses a rank only together with other tests would leave no trace else.
                    print(f"{'control' if plain else 'call'}: {tests[0].rpartition('.')[0]}: {error}", flush=True)
                    calls.extendleft([test] for test in reversed(tests))
                else:
                    # unittest takes the end of a call for an error of the test
                    late = isinstance(error, CollectiveFailed) or CallCancelled.__name__ in str(error)
                    outcome = "hangs" if late else "failed"
                    comparison.add(found, {tests[0]: outcome})
                    print(f"{'control' if plain else 'call'}: {tests[0]}: {outcome}: {error}", flush=True)
    return found


def compare(ranks: int, patterns: list[str], repeat: int) -> int:
    """Run the tests of some patterns, print what differs, and return how many differences are not expected."""
    ours, control = (outcomes(ranks, patterns, repeat, plain=plain) for plain in (False, True))
    return comparison.compare(f"{ranks} ranks", ours, control, EXPECTED)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", default="2,4", help="sizes of the clusters (default: %(default)s)")
    options.add_argument("--only", default="*", help="tests to run, as patterns of their names")
    options.add_argument("--repeat", type=int, default=1, help="runs of each test (default: %(default)s)")
    given = options.parse_args()
    sizes = [int(ranks) for ranks in given.ranks.split(",")]
    return 1 if sum([compare(ranks, given.only.split(","), given.repeat) for ranks in sizes]) else 0


if __name__ == "__main__":
    sys.exit(main())
