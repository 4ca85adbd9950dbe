"""Run mpi4py's own tests inside calls on all ranks, and compare with plain communicators on the same ranks.

``python tests/suites/run_mpi4py.py [--ranks 2,4] [--only PATTERN]``: each test is a call. A test that is right on plain
communicators has to be right in a call; what is not is listed below with its reason, or the run fails.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

import sources
from distributed import Client

from workbench import MPICluster, run_on_ranks
from workbench.errors import CollectiveFailed, InvalidRequest

# Tests, as patterns, that need not come to the same, and why.
EXPECTED = {
    "test_comm.TestComm*.testPickle": "MPI's own communicators are pickled by their names, those of a call have none",
    "test_comm_topo.TestTopo*": "what Create_cart and others return is of a subclass, and tests compare the very class",
    "test_exceptions.TestExcComm.testFree*": "the communicators of a call can be freed, those of MPI cannot",
}
# Seconds for one test.
PATIENCE = 10 * float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1"))


@contextlib.contextmanager
def stand_in(comm, folder: str, *, plain: bool) -> Iterator[None]:
    """Have the modules of tests find the communicator of the call, and one of this rank alone, in MPI's place."""
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
        stand_in.COMM_WORLD, stand_in.COMM_SELF = comm, alone
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


def run(comm, folder: str, name: str, *, plain: bool) -> str:
    """Run a test on this rank; return what it came to."""
    import unittest

    result = unittest.TestResult()
    with stand_in(comm, folder, plain=plain):
        unittest.TestLoader().loadTestsFromName(name).run(result)
    if wrong := result.errors + result.failures + [(test, "unexpected success") for test in result.unexpectedSuccesses]:
        raise AssertionError(wrong[0][1])
    return "skipped" if result.skipped or result.expectedFailures else "right"


def outcomes(ranks: int, pattern: str, *, plain: bool) -> dict[str, tuple[str, str]]:
    """Return what each test of a pattern comes to on a cluster of its own, and what it reports."""
    folder = str(sources.distribution("mpi4py") / "test")
    found = {}
    with MPICluster(ranks, quiet=True) as cluster, Client(cluster) as client:
        for name in fnmatch.filter(run_on_ranks(names, folder, client=client, result="root"), pattern):
            try:
                words = run_on_ranks(run, folder, name, client=client, timeout=PATIENCE, plain=plain)
                found[name] = ("skipped" if "skipped" in words else "right"), ""
            except Exception as error:  # noqa: BLE001  (whatever it is, the comparison shows it)
                found[name] = ("hangs" if isinstance(error, CollectiveFailed) else "wrong"), str(error)
                if plain or not isinstance(error, AssertionError):
                    # Nothing ends what waits on a plain communicator. A world that has lost a rank starts by itself.
                    with contextlib.suppress(InvalidRequest):
                        cluster.restart()
                    client.wait_for_workers(ranks, timeout=6 * PATIENCE)
            if found[name][0] in ("hangs", "wrong"):
                print(f"{'control' if plain else 'call'}: {name}: {found[name][0]}", flush=True)
    return found


def compare(ranks: int, pattern: str) -> int:
    """Run the tests of a pattern, print what differs, and return how many differences are not expected."""
    began = time.monotonic()
    ours = outcomes(ranks, pattern, plain=False)
    print(f"{ranks} ranks: {len(ours)} tests run in calls in {time.monotonic() - began:.0f} s", flush=True)
    control = outcomes(ranks, pattern, plain=True)
    counts = Counter(outcome for outcome, _ in ours.values())
    differ = [name for name, (outcome, _) in ours.items() if outcome != control[name][0]]
    unexpected = 0
    for name in differ:
        outcome, report = ours[name]
        reason = next((why for test, why in EXPECTED.items() if fnmatch.fnmatch(name, test)), "")
        unexpected += not reason
        why = reason or "NOT EXPECTED: " + (report.strip().splitlines() or ["no error"])[-1]
        print(f"{name}: {outcome}, on plain communicators {control[name][0]}: {why}")
    print(
        f"{ranks} ranks: {len(ours)} tests run, {counts['right']} right, {counts['skipped']} skipped; "
        f"{len(ours) - len(differ)} equal to the control, {len(differ) - unexpected} differ as expected, {unexpected} "
        f"otherwise, in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return unexpected


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", default="2,4", help="sizes of the clusters (default: %(default)s)")
    options.add_argument("--only", default="*", help="tests to run, as a pattern of their names")
    given = options.parse_args()
    return 1 if sum([compare(int(ranks), given.only) for ranks in given.ranks.split(",")]) else 0


if __name__ == "__main__":
    sys.exit(main())
